// A file is written beside its place and renamed into it.
#include "files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kvart::tools {
namespace {

Error io_error(const std::string& path, const char* what) {
  return Error{ErrorCode::io, fmt::format("{}: {}: {}", path, what, std::strerror(errno))};
}

Status write_all(int descriptor, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(descriptor, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return io_error(path, "can't be written");
    done += static_cast<size_t>(count);
  }
  if (::fsync(descriptor) != 0) return io_error(path, "can't be written");
  return {};
}

}  // namespace

Status write_file(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) return io_error(path, "can't be created");
  Status status = write_all(descriptor, text, path);
  if (::close(descriptor) != 0 && status.ok()) status = io_error(path, "can't be written");
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = io_error(path, "can't be replaced");
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

}  // namespace kvart::tools
