// ByteCount: bytes that count in a sum as long as somebody holds them.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

namespace kvart::server {

// Of one thread at a time; those of one sum may be of several. The sum must be there only while
// there are bytes.
class ByteCount {
 public:
  explicit ByteCount(std::atomic<size_t>& sum) : sum_(&sum) {}
  ByteCount(ByteCount&& other) noexcept
      : sum_(other.sum_), bytes_(std::exchange(other.bytes_, 0)) {}
  ByteCount(const ByteCount&) = delete;
  ByteCount& operator=(const ByteCount&) = delete;
  ByteCount& operator=(ByteCount&&) = delete;
  ~ByteCount() { set(0); }

  void set(size_t bytes) {
    if (bytes == bytes_) return;
    *sum_ += bytes - bytes_;  // modulo 2^64: fewer too
    bytes_ = bytes;
  }

 private:
  std::atomic<size_t>* sum_;
  size_t bytes_ = 0;
};

}  // namespace kvart::server
