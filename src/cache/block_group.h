// BlockGroup: the blocks of the layers that see the same tokens. Sealed pages, full-precision
// slots, for each of both the index node that names it and when it was dropped; and slots that are
// parked in pages.
//
// Blocks carry one number in the index: page p is p, slot s is pages + s.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/block_pool.h"
#include "cache/kv_cache.h"
#include "cache/parked_slots.h"
#include "cache/prefix_index.h"

namespace kvart {

class BlockGroup {
 public:
  BlockGroup(int window, BlockPool page_pool, BlockPool slot_pool);

  [[nodiscard]] int window() const { return window_; }
  [[nodiscard]] bool is_full_attention() const { return window_ == 0; }
  // The first block that queries from the start of `block` on see.
  [[nodiscard]] int64_t first_visible(int64_t block) const {
    return first_visible_block(window_, block * block_tokens);
  }

  [[nodiscard]] int32_t block_of(BlockPlace place) const {
    return place.page >= 0 ? place.page : pages.count() + place.slot;
  }
  [[nodiscard]] BlockPlace place_of(int32_t block) const;
  [[nodiscard]] int32_t node(int32_t block) const { return nodes_[static_cast<size_t>(block)]; }
  // Says which node names the block, or none. Without one a block is free once it is dropped.
  void set_node(int32_t block, int32_t node) { nodes_[static_cast<size_t>(block)] = node; }
  // No block is named any more; cached ones are free.
  void forget_nodes();

  void retain(BlockPlace place);
  void drop(BlockPlace place);
  // When the block was dropped for the last time: drops are counted.
  [[nodiscard]] int64_t dropped_at(int32_t block) const {
    return dropped_at_[static_cast<size_t>(block)];
  }
  // Makes a cached block, page or slot, free; no node names it.
  void discard(int32_t block);
  // Whether so many pages are free, or would be without what was dropped before that time: cached
  // pages and parked slots.
  [[nodiscard]] bool has_older(int64_t count, int64_t dropped_at) const;
  // Pages of parked slots count as cached ones.
  [[nodiscard]] BlockCounts counts() const;

  BlockPool pages;
  BlockPool slots;
  ParkedSlots parked;

 private:
  int window_;
  std::vector<int32_t> nodes_;
  std::vector<int64_t> dropped_at_;
  int64_t drops_ = 0;
};

}  // namespace kvart
