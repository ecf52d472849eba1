// Arena: one fixed range of memory, taken from the operating system at once and given back at the
// end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvart/result.h"

namespace kvart {

class Arena {
 public:
  enum class Backing {
    committed,  // the system refuses what it can't hold
    sparse,     // address space only; pages appear when they are touched
  };

  // Gives memory back that take() didn't take.
  using Release = void (*)(uint8_t* data, size_t bytes);

  Arena() = default;
  // Owns memory of another kind, aligned as take()'s is.
  Arena(uint8_t* data, size_t bytes, Release release)
      : data_(data), bytes_(bytes), release_(release) {}
  // All bytes are zero, aligned to 128 bytes or more. Error out_of_memory: the system refused.
  static Result<Arena> take(size_t bytes, Backing backing = Backing::committed);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  [[nodiscard]] uint8_t* data() const { return data_; }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  Release release_ = nullptr;  // null: what take() took
};

}  // namespace kvart
