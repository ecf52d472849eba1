// Pages and slots of a group of layers, named by one kind of number.
#include "cache/block_group.h"

#include <algorithm>
#include <utility>

namespace kvart {

BlockGroup::BlockGroup(int window, BlockPool page_pool, BlockPool slot_pool)
    : pages(std::move(page_pool)),
      slots(std::move(slot_pool)),
      window_(window),
      nodes_(static_cast<size_t>(pages.count()) + static_cast<size_t>(slots.count()),
             PrefixIndex::none) {}

BlockPlace BlockGroup::place_of(int32_t block) const {
  if (block < pages.count()) return {block, -1};
  return {-1, block - pages.count()};
}

void BlockGroup::forget_nodes() {
  for (BlockPool* pool : {&pages, &slots}) {
    while (pool->oldest_cached() >= 0) pool->discard(pool->oldest_cached());
  }
  std::fill(nodes_.begin(), nodes_.end(), PrefixIndex::none);
}

void BlockGroup::retain(BlockPlace place) {
  if (place.page >= 0) pages.retain(place.page);
  if (place.slot >= 0) slots.retain(place.slot);
}

void BlockGroup::drop(BlockPlace place) {
  if (place.page >= 0) {
    pages.drop(place.page, node(block_of({place.page, -1})) != PrefixIndex::none);
  }
  if (place.slot >= 0) {
    slots.drop(place.slot, node(block_of({-1, place.slot})) != PrefixIndex::none);
  }
}

void BlockGroup::discard(int32_t block) {
  set_node(block, PrefixIndex::none);
  const BlockPlace place = place_of(block);
  if (place.page >= 0) {
    pages.discard(place.page);
  } else {
    slots.discard(place.slot);
  }
}

BlockCounts BlockGroup::counts() const {
  return {pages.count(), pages.free_count(), pages.cached_count(), pages.referenced_count(),
          slots.count(), slots.free_count(), slots.cached_count(), slots.referenced_count()};
}

}  // namespace kvart
