// BlockGroup: the blocks of the layers that see the same tokens. Sealed pages, full-precision
// slots, and for each of both the index node that names it.
//
// Blocks carry one number in the index: page p is p, slot s is pages + s.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/block_pool.h"
#include "cache/kv_cache.h"
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
  // Makes a cached block, page or slot, free; no node names it.
  void discard(int32_t block);
  [[nodiscard]] BlockCounts counts() const;

  BlockPool pages;
  BlockPool slots;

 private:
  int window_;
  std::vector<int32_t> nodes_;
};

}  // namespace kvart
