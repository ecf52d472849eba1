// ParkedSlots: blocks in full precision that nobody refers to, copied out of their slots into pages
// that nobody needs. A cached prefix whose first block is parked is still there, as long as its
// pages aren't needed; to be read it comes back to a slot.
//
// The pages belong to a pool, which the caller passes; for it they are referenced. A parked block
// is named by the first of its pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/age_list.h"
#include "cache/block_pool.h"

namespace kvart {

class ParkedSlots {
 public:
  static constexpr int32_t none = -1;

  // For slots of slot_bytes in the pages of `pages`.
  ParkedSlots(const BlockPool& pages, size_t slot_bytes);

  [[nodiscard]] int64_t pages_per_slot() const { return pages_per_slot_; }
  // Copies the slot's bytes; the block becomes the youngest parked one. node: of the prefix index.
  // dropped_at: the age that it had as a slot. Precondition: pages_per_slot() pages are free.
  int32_t park(BlockPool& pages, const uint8_t* slot, int32_t node, int64_t dropped_at);
  void load(const BlockPool& pages, int32_t parked, uint8_t* slot) const;
  // Takes the block off the list that oldest() is from, until it is dropped.
  void hold(int32_t parked);
  // Its pages are free.
  void drop(BlockPool& pages, int32_t parked);

  [[nodiscard]] int32_t oldest() const { return by_age_.oldest(); }
  [[nodiscard]] int32_t younger(int32_t parked) const { return by_age_.younger(parked); }
  [[nodiscard]] int32_t node(int32_t parked) const { return at(parked).node; }
  [[nodiscard]] int64_t dropped_at(int32_t parked) const { return at(parked).dropped_at; }
  [[nodiscard]] bool contains(int32_t parked) const {
    return parked >= 0 && static_cast<size_t>(parked) < blocks_.size() && at(parked).node >= 0;
  }
  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] int64_t pages() const { return count_ * pages_per_slot_; }

  // Aborts when lists and counts disagree, or a page has two owners or none. `own`: for each page
  // of the pool whether it is a parked block's.
  [[nodiscard]] std::vector<bool> check_integrity(const BlockPool& pages) const;

 private:
  struct Block {
    int32_t node = none;  // none: no parked block begins in that page
    bool held = false;
    int64_t dropped_at = 0;
  };
  [[nodiscard]] Block& at(int32_t parked) { return blocks_[static_cast<size_t>(parked)]; }
  [[nodiscard]] const Block& at(int32_t parked) const {
    return blocks_[static_cast<size_t>(parked)];
  }
  // Calls visit(page, offset in the slot, bytes) for each page of the block.
  template <class Visit>
  void for_pages(int32_t parked, const Visit& visit) const;

  size_t page_bytes_;
  size_t slot_bytes_;
  int64_t pages_per_slot_;
  std::vector<Block> blocks_;       // by first page
  std::vector<int32_t> next_page_;  // of the same block, or none
  AgeList by_age_;
  int64_t count_ = 0;
};

}  // namespace kvart
