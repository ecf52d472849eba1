// HostStore: evicted blocks in host memory, the second tier of the prefix cache. One arena, taken
// at the start and cut into chunks of one size: blocks of all groups, pages and slots, share it, a
// block takes as many chunks as it needs, and nothing is ever moved or allocated.
//
// It knows bytes and their age. Whose content they are is what the prefix index says: a stored
// block carries the node that names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/age_list.h"
#include "cache/arena.h"
#include "cache/cache_memory.h"
#include "kvart/result.h"

namespace kvart {

class HostStore {
 public:
  static constexpr int32_t none = -1;

  struct Label {
    int32_t node = none;   // of the prefix index, that names the stored block
    int32_t group = 0;     // of layers
    bool is_slot = false;  // full precision, else a page
    uint64_t key = 0;      // of the content: bytes under another content's name are not intact
  };

  // Takes as much of `bytes` as whole chunks fill. block_bytes: the sizes that blocks have, each
  // above 0. Error invalid_argument: the largest block doesn't fit, or there are more than 2^31
  // chunks; out_of_memory.
  static Result<HostStore> take(uint64_t bytes, std::span<const size_t> block_bytes);

  [[nodiscard]] bool has_room(size_t bytes) const { return chunks_for(bytes) <= free_chunks_; }
  // A copy of the block's bytes, which lie in `memory`, becomes the youngest stored one.
  // Precondition: has_room(size), and `size` is one of block_bytes.
  int32_t store(const Label& label, const uint8_t* bytes, size_t size,
                const CacheMemory& memory = system_memory());
  // Whether the bytes are those that were stored under that label.
  [[nodiscard]] bool is_intact(int32_t block) const;
  void load(int32_t block, uint8_t* to, const CacheMemory& memory = system_memory()) const;
  // Takes the block off the list that oldest() is from, until it is dropped.
  void hold(int32_t block);
  void drop(int32_t block);
  void clear();
  // The block that was stored the longest ago and isn't held, or none.
  [[nodiscard]] int32_t oldest() const { return by_age_.oldest(); }

  [[nodiscard]] const Label& label(int32_t block) const { return at(block).label; }
  [[nodiscard]] size_t size_bytes(int32_t block) const { return at(block).bytes; }
  [[nodiscard]] bool contains(int32_t block) const {
    return block >= 0 && block < most_blocks() && at(block).in_use;
  }
  [[nodiscard]] int32_t blocks() const { return used_blocks_; }
  [[nodiscard]] int32_t most_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  [[nodiscard]] uint64_t bytes_used() const {  // whole chunks
    return (chunks_.size() - free_chunks_) * chunk_bytes_;
  }
  [[nodiscard]] uint64_t bytes_total() const { return arena_.bytes(); }

  // Aborts when lists, chunks and counts disagree, or a stored block's bytes have changed.
  void check_integrity() const;
  // For tests: where the block's first byte lies.
  [[nodiscard]] uint8_t* first_byte(int32_t block) const { return chunk(at(block).first_chunk); }

 private:
  struct Block {
    Label label;
    uint64_t checksum = 0;
    size_t bytes = 0;
    int32_t first_chunk = none;
    bool in_use = false;
    bool held = false;
  };

  HostStore(Arena arena, size_t chunk_bytes, size_t most_blocks);
  [[nodiscard]] const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  [[nodiscard]] Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  [[nodiscard]] size_t chunks_for(size_t bytes) const {
    return (bytes + chunk_bytes_ - 1) / chunk_bytes_;
  }
  [[nodiscard]] uint8_t* chunk(int32_t index) const {
    return arena_.data() + static_cast<size_t>(index) * chunk_bytes_;
  }
  // Calls visit(chunk's bytes, offset in the block, size) for each chunk of the block.
  template <class Visit>
  void for_chunks(const Block& block, const Visit& visit) const;
  [[nodiscard]] uint64_t checksum_of(const Block& block) const;

  Arena arena_;
  size_t chunk_bytes_;
  std::vector<int32_t> chunks_;  // the one after it, of its block or of the free ones; or none
  std::vector<Block> blocks_;
  AgeList by_age_;               // those that aren't held
  std::vector<int32_t> unused_;  // blocks that are not in use
  int32_t first_free_ = none;
  size_t free_chunks_ = 0;
  int32_t used_blocks_ = 0;
};

}  // namespace kvart
