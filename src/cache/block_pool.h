// BlockPool: the blocks of one arena. Each block is free, referenced (by that many block table
// entries), or cached: unreferenced, but kept because the prefix index names it.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/age_list.h"
#include "cache/arena.h"
#include "cache/cache_memory.h"

namespace kvart {

class BlockPool {
 public:
  // Free blocks are filled with this byte when the pool is told to poison: as f16 it reads as NaN.
  static constexpr uint8_t poison_byte = 0x7e;

  // Blocks of block_bytes each; the arena, of `memory`, holds at least count of them. All are free.
  // poison_free_blocks: only in the system's memory.
  BlockPool(Arena arena, int32_t count, size_t block_bytes, bool poison_free_blocks,
            const CacheMemory& memory = system_memory());

  // A free block with one reference. Precondition: free_count() > 0.
  int32_t take();
  // One more reference to a block that is not free.
  void retain(int32_t block);
  // One reference less. A block that loses its last one becomes the youngest cached block if
  // `keep`, else free.
  void drop(int32_t block, bool keep);
  // Makes a cached block free.
  void discard(int32_t block);

  // The cached block that was dropped the longest ago, or -1.
  [[nodiscard]] int32_t oldest_cached() const { return cached_.oldest(); }
  // The cached block dropped next after `block`, or -1.
  [[nodiscard]] int32_t younger_cached(int32_t block) const { return cached_.younger(block); }

  [[nodiscard]] int32_t references(int32_t block) const { return blocks_[index(block)].references; }
  [[nodiscard]] bool is_cached(int32_t block) const {
    return blocks_[index(block)].state == State::cached;
  }
  [[nodiscard]] bool is_free(int32_t block) const {
    return blocks_[index(block)].state == State::free;
  }
  [[nodiscard]] int32_t count() const { return static_cast<int32_t>(blocks_.size()); }
  [[nodiscard]] int32_t free_count() const { return static_cast<int32_t>(free_.size()); }
  [[nodiscard]] int32_t cached_count() const { return cached_count_; }
  [[nodiscard]] int32_t referenced_count() const { return count() - free_count() - cached_count(); }

  [[nodiscard]] uint8_t* data(int32_t block) const;
  [[nodiscard]] size_t block_bytes() const { return block_bytes_; }
  [[nodiscard]] size_t arena_bytes() const { return arena_.bytes(); }
  [[nodiscard]] const CacheMemory& memory() const { return *memory_; }

  // Aborts when free list, cached list, states and counts disagree, or a free block was written to.
  void check_integrity() const;

 private:
  enum class State : uint8_t { free, referenced, cached };
  struct Block {
    int32_t references = 0;
    State state = State::free;
  };

  [[nodiscard]] static size_t index(int32_t block) { return static_cast<size_t>(block); }
  void add_free(int32_t block);
  [[nodiscard]] bool is_poisoned(int32_t block) const;

  Arena arena_;
  const CacheMemory* memory_;
  size_t block_bytes_;
  bool poison_free_blocks_;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // last in, first out: recently used memory is warm
  AgeList cached_;
  int32_t cached_count_ = 0;
};

}  // namespace kvart
