// Mapping files and living through their shrinking: see mapped_file.h.
#include "model/file/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "model/file/printable.h"

namespace kvart {

namespace {

// A signal handler gets no argument of ours: what it needs has to be global, here and nowhere else.
// Slots are written under the mutex and read by the handler in any thread.
struct Slot {
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
  std::atomic<bool> lost = false;
};

struct Guard {
  std::mutex mutex;
  std::array<Slot, 1024> slots;
  int used = 0;
  uintptr_t page_bytes = 0;
  struct sigaction previous = {};
};

Guard guard;

static_assert(std::atomic<uintptr_t>::is_always_lock_free);

void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& previous = guard.previous;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // The access is repeated when the handler returns and then ends the process as it should.
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    sigaction(signal, &standard, nullptr);
  }
}

// Async-signal-safe: atomics and system calls.
void on_sigbus(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Slot& slot : guard.slots) {
    if (address < slot.begin.load() || address >= slot.end.load()) continue;
    const int error = errno;
    const uintptr_t page = address & ~(guard.page_bytes - 1);
    void* zeros = mmap(reinterpret_cast<void*>(page), guard.page_bytes, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    errno = error;
    if (zeros == MAP_FAILED) break;
    slot.lost.store(true);
    return;
  }
  pass_on(signal, info, context);
}

// Both with the mutex held.
bool install_handler() {
  guard.page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, &guard.previous) == 0;
}

void remove_handler() {
  struct sigaction current = {};
  sigaction(SIGBUS, nullptr, &current);
  // Somebody who came later may pass signals on to us: then it stays, and does nothing.
  if (current.sa_sigaction == on_sigbus) sigaction(SIGBUS, &guard.previous, nullptr);
}

// A slot for the mapped bytes, or -1.
int take_slot(const void* data, size_t size) {
  const std::lock_guard lock(guard.mutex);
  for (size_t i = 0; i < guard.slots.size(); ++i) {
    Slot& slot = guard.slots[i];
    if (slot.end.load() != 0) continue;
    if (guard.used == 0 && !install_handler()) return -1;
    ++guard.used;
    slot.lost.store(false);
    slot.begin.store(reinterpret_cast<uintptr_t>(data));
    slot.end.store(reinterpret_cast<uintptr_t>(data) + size);
    return static_cast<int>(i);
  }
  return -1;
}

void give_slot_back(int index) {
  const std::lock_guard lock(guard.mutex);
  guard.slots[static_cast<size_t>(index)].end.store(0);
  if (--guard.used == 0) remove_handler();
}

}  // namespace

MappedFile::~MappedFile() {
  // Unmapped first: until then the handler has to know the range.
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
  if (slot_ >= 0) give_slot_back(slot_);
  if (descriptor_ >= 0) close(descriptor_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(written_, other.written_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(slot_, other.slot_);
  return *this;
}

Result<MappedFile> MappedFile::map(int descriptor, size_t size, const std::string& path) {
  MappedFile file;
  file.path_ = printable(path, 512);
  const auto failed = [&](const char* what) {
    return Error{ErrorCode::io, fmt::format("{}: {}: {}", file.path_, what, std::strerror(errno))};
  };
  struct stat status = {};
  file.descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (file.descriptor_ < 0 || fstat(file.descriptor_, &status) != 0) {
    return failed("can't ask for the file's size");
  }
  file.size_ = size;
  file.written_ = status.st_mtim;
  if (static_cast<size_t>(status.st_size) != size) return file.changed();
  if (size == 0) return file;
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (data == MAP_FAILED) return failed("can't map the file");
  file.data_ = static_cast<const uint8_t*>(data);
  file.slot_ = take_slot(data, size);
  if (file.slot_ < 0) {
    return Error{ErrorCode::io, fmt::format("{}: {} files are mapped already; load models one "
                                            "after the other",
                                            file.path_, guard.slots.size())};
  }
  return file;
}

Error MappedFile::changed() const {
  return {ErrorCode::io, fmt::format("{}: the file of {} bytes changed while it was read, or its "
                                     "disk fails: something is writing to it; start again when "
                                     "that is done",
                                     path_, size_)};
}

Status MappedFile::check() const {
  if (descriptor_ < 0) return {};
  struct stat status = {};
  const bool same =
      fstat(descriptor_, &status) == 0 && static_cast<size_t>(status.st_size) == size_ &&
      status.st_mtim.tv_sec == written_.tv_sec && status.st_mtim.tv_nsec == written_.tv_nsec;
  // Reads beyond the new end but on its last page give zeros without a signal: hence the size.
  const bool lost = slot_ >= 0 && guard.slots[static_cast<size_t>(slot_)].lost.load();
  if (!same || lost) return changed();
  return {};
}

}  // namespace kvart
