// Arenas from anonymous mappings.
#include "cache/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>

namespace kvart {

Result<Arena> Arena::take(size_t bytes, Backing backing) {
  Arena arena;
  if (bytes == 0) return arena;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (backing == Backing::sparse ? MAP_NORESERVE : 0);
  void* memory =
      bytes > PTRDIFF_MAX ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("the system refused {} bytes ({:.2f} GB) for the cache", bytes,
                             static_cast<double>(bytes) / 1e9)};
  }
  // Spans of a layer are spread over the whole arena: large pages save most of the TLB misses.
  // A refusal changes nothing but speed.
  madvise(memory, bytes, MADV_HUGEPAGE);
  arena.data_ = static_cast<uint8_t*>(memory);
  arena.bytes_ = bytes;
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      release_(other.release_) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(release_, other.release_);
  return *this;
}

Arena::~Arena() {
  if (data_ == nullptr) return;
  if (release_ != nullptr) {
    release_(data_, bytes_);
  } else {
    munmap(data_, bytes_);
  }
}

}  // namespace kvart
