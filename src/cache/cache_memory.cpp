// The system's memory as a cache's.
#include "cache/cache_memory.h"

#include <cstring>

namespace kvart {

namespace {

class SystemMemory final : public CacheMemory {
 public:
  [[nodiscard]] Result<Arena> take(size_t bytes) const override { return Arena::take(bytes); }
  void copy(uint8_t* to, const uint8_t* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  void read(uint8_t* to, const uint8_t* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  void write(uint8_t* to, const uint8_t* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

const CacheMemory& system_memory() {
  static const SystemMemory memory;
  return memory;
}

}  // namespace kvart
