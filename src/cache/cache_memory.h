// CacheMemory: where the bytes of blocks lie, and how they get from one place to another. The
// system's own memory, or a device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/arena.h"
#include "kvart/result.h"

namespace kvart {

class CacheMemory {
 public:
  virtual ~CacheMemory() = default;
  // Error out_of_memory, with what was asked for.
  [[nodiscard]] virtual Result<Arena> take(size_t bytes) const = 0;

  // Copies are done one after the other, and before whatever uses the cache next. Their ranges
  // don't overlap. From an arena to an arena:
  virtual void copy(uint8_t* to, const uint8_t* from, size_t bytes) const = 0;
  // To the system's memory, where the bytes are when it returns, and from there; then `from` is
  // the caller's again.
  virtual void read(uint8_t* to, const uint8_t* from, size_t bytes) const = 0;
  virtual void write(uint8_t* to, const uint8_t* from, size_t bytes) const = 0;
};

// The system's memory.
const CacheMemory& system_memory();

}  // namespace kvart
