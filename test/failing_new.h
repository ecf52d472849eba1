// An operator new that counts, and fails where a test wants it to; for the one source of a test
// program. All memory of the program goes through it, that of all its threads.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "spared.h"

namespace {

constexpr int64_t never = -1;
std::atomic<int64_t> successes_left = never;  // allocations before the one that fails
std::atomic<bool> fails_on = false;           // and all after it, not that one only
// The next allocation of at least so many bytes, but fewer than twice as many, fails; 0: none.
std::atomic<std::size_t> failing_bytes = 0;
using kvart::test::spared;
std::atomic<int64_t> allocations = 0;
std::atomic<int64_t> failures = 0;
std::atomic<int64_t> live_allocations = 0;
std::atomic<std::size_t> live_bytes = 0;

inline bool next_allocation_fails(std::size_t size) {
  std::size_t failing = failing_bytes;
  if (failing > 0 && size >= failing && size < 2 * failing &&
      failing_bytes.compare_exchange_strong(failing, 0)) {
    return true;
  }
  const int64_t left = successes_left;
  if (left == 0 && !fails_on) successes_left = never;
  if (left > 0) --successes_left;
  return left == 0;
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  const bool fails = !spared && next_allocation_fails(size);
  if (fails) ++failures;
  void* block = fails ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) throw std::bad_alloc();
  ++live_allocations;
  live_bytes += ::malloc_usable_size(block);
  return block;
}

// The one of std::stable_sort; a sanitizer's own would not match the operator delete below.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

[[gnu::noinline]] void operator delete(void* block) noexcept {
  if (block != nullptr) --live_allocations;
  live_bytes -= ::malloc_usable_size(block);  // 0 of null
  std::free(block);
}

void operator delete(void* block, std::size_t) noexcept {
  operator delete(block);
}
