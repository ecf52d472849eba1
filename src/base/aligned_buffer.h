// A fixed buffer, 128-byte aligned (a cache line pair; spans are multiples of it). Owns its memory;
// moves, never copies.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/check.h"

namespace kvart {

template <class T>
class AlignedBuffer {
 public:
  static constexpr size_t alignment = 128;

  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t count) {
    KVART_CHECK(allocate(count), "no memory for %zu elements of %zu bytes", count, sizeof(T));
  }
  // For sizes that the outside world decides. False: there is no memory, the buffer stays empty.
  [[nodiscard]] bool allocate(size_t count) {
    std::free(std::exchange(data_, nullptr));
    count_ = 0;
    if (count == 0) return true;
    if (count > (SIZE_MAX - alignment) / sizeof(T)) return false;
    const size_t bytes = (count * sizeof(T) + alignment - 1) / alignment * alignment;
    data_ = static_cast<T*>(std::aligned_alloc(alignment, bytes));
    if (data_ != nullptr) count_ = count;
    return data_ != nullptr;
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { std::free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  [[nodiscard]] size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace kvart
