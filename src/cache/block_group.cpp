// Pages and slots of a group of layers, named by one kind of number.
#include "cache/block_group.h"

#include <algorithm>
#include <utility>

namespace kvart {

BlockGroup::BlockGroup(int window, BlockPool page_pool, BlockPool slot_pool)
    : pages(std::move(page_pool)),
      slots(std::move(slot_pool)),
      parked(pages, slots.block_bytes()),
      window_(window),
      nodes_(static_cast<size_t>(pages.count()) + static_cast<size_t>(slots.count()),
             PrefixIndex::none),
      dropped_at_(nodes_.size()) {}

BlockPlace BlockGroup::place_of(int32_t block) const {
  if (block < pages.count()) return {block, -1};
  return {-1, block - pages.count()};
}

void BlockGroup::forget_nodes() {
  for (BlockPool* pool : {&pages, &slots}) {
    while (pool->oldest_cached() >= 0) pool->discard(pool->oldest_cached());
  }
  while (parked.oldest() != ParkedSlots::none) parked.drop(pages, parked.oldest());
  std::fill(nodes_.begin(), nodes_.end(), PrefixIndex::none);
}

void BlockGroup::retain(BlockPlace place) {
  if (place.page >= 0) pages.retain(place.page);
  if (place.slot >= 0) slots.retain(place.slot);
}

void BlockGroup::drop(BlockPlace place) {
  ++drops_;
  if (place.page >= 0) {
    const int32_t block = block_of({place.page, -1});
    dropped_at_[static_cast<size_t>(block)] = drops_;
    pages.drop(place.page, node(block) != PrefixIndex::none);
  }
  if (place.slot >= 0) {
    const int32_t block = block_of({-1, place.slot});
    dropped_at_[static_cast<size_t>(block)] = drops_;
    slots.drop(place.slot, node(block) != PrefixIndex::none);
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

bool BlockGroup::has_older(int64_t count, int64_t dropped_at) const {
  int64_t found = pages.free_count();
  for (int32_t page = pages.oldest_cached();
       found < count && page >= 0 && this->dropped_at(page) < dropped_at;
       page = pages.younger_cached(page)) {
    ++found;
  }
  for (int32_t one = parked.oldest();
       found < count && one != ParkedSlots::none && parked.dropped_at(one) < dropped_at;
       one = parked.younger(one)) {
    found += parked.pages_per_slot();
  }
  return found >= count;
}

BlockCounts BlockGroup::counts() const {
  return {pages.count(),
          pages.free_count(),
          pages.cached_count() + parked.pages(),
          pages.referenced_count() - parked.pages(),
          slots.count(),
          slots.free_count(),
          slots.cached_count(),
          slots.referenced_count()};
}

}  // namespace kvart
