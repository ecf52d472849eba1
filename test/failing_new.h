// An operator new that counts, and fails where a test wants it to; for the one source of a test
// program. All memory of the program goes through it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

constexpr int64_t never = -1;
int64_t successes_left = never;  // allocations before the one that fails
bool fails_on = false;           // and all after it, not that one only
int64_t allocations = 0;
int64_t failures = 0;
int64_t live_allocations = 0;

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  void* block = nullptr;
  if (successes_left == 0) {
    ++failures;
    if (!fails_on) successes_left = never;
  } else {
    if (successes_left > 0) --successes_left;
    block = std::malloc(size == 0 ? 1 : size);
  }
  if (block == nullptr) throw std::bad_alloc();
  ++live_allocations;
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
  std::free(block);
}

void operator delete(void* block, std::size_t) noexcept {
  operator delete(block);
}
