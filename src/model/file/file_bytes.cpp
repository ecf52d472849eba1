// Reading a file's start into memory: see file_bytes.h.
#include "model/file/file_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "model/file/printable.h"

namespace kvart {

namespace {

constexpr size_t least_read_bytes = size_t{1} << 20;

Error system_error(ErrorCode code, const std::string& path, const char* what, int error) {
  return {code, fmt::format("{}: {}: {}", printable(path, 512), what, std::strerror(error))};
}

}  // namespace

FileBytes::~FileBytes() {
  if (data_ != nullptr) munmap(data_, size_);
  if (descriptor_ >= 0) close(descriptor_);
}

FileBytes::FileBytes(FileBytes&& other) noexcept {
  *this = std::move(other);
}

FileBytes& FileBytes::operator=(FileBytes&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(loaded_, other.loaded_);
  return *this;
}

Result<FileBytes> FileBytes::open(const std::string& path) {
  FileBytes file;
  file.path_ = path;
  // Non-blocking, so that opening a pipe that no one writes to returns and can be refused.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.descriptor_ < 0) {
    const int error = errno;
    const ErrorCode code = error == ENOENT ? ErrorCode::not_found : ErrorCode::io;
    return system_error(code, path, "can't open the file", error);
  }
  struct stat status = {};
  if (fstat(file.descriptor_, &status) != 0) {
    return system_error(ErrorCode::io, path, "can't ask for the file's size", errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return Error{ErrorCode::io, fmt::format("{}: not a regular file; give the path of a model file",
                                            printable(path, 512))};
  }
  if (status.st_size == 0) return file;
  const auto size = static_cast<size_t>(status.st_size);
  // Addresses for the whole file; memory is taken only as it is read.
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{}: no addresses for the file's {} bytes ({}); raise the limit on "
                             "memory or use a smaller model",
                             printable(path, 512), size, std::strerror(errno))};
  }
  file.data_ = static_cast<uint8_t*>(data);
  file.size_ = size;
  return file;
}

Status FileBytes::load(size_t end_bytes) {
  KVART_CHECK(end_bytes <= size_, "%zu of %zu bytes", end_bytes, size_);
  if (end_bytes <= loaded_) return {};
  const size_t goal = std::max(end_bytes, std::min(size_, loaded_ + least_read_bytes));
  while (loaded_ < goal) {
    const ssize_t count =
        pread(descriptor_, data_ + loaded_, goal - loaded_, static_cast<off_t>(loaded_));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(ErrorCode::io, path_, "can't read the file", errno);
    if (count == 0) {
      return Error{ErrorCode::io,
                   fmt::format("{}: the file had {} bytes when it was opened and ends at byte {} "
                               "now: something is writing to it; start again when it is done",
                               printable(path_, 512), size_, loaded_)};
    }
    loaded_ += static_cast<size_t>(count);
  }
  return {};
}

Result<MappedFile> FileBytes::map() const {
  return MappedFile::map(descriptor_, size_, path_);
}

}  // namespace kvart
