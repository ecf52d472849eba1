// Who gives way when memory is full. No function recurses: chains get as long as a pool has blocks.
#include <fmt/format.h>

#include <string>

#include "base/check.h"
#include "cache/paged_kv_cache.h"

namespace kvart {

bool PagedKvCache::can_have(const BlockCounts& counts, const Room& room) {
  return room.pages <= counts.pages_free + counts.pages_cached &&
         room.slots <= counts.slots_free + counts.slots_cached;
}

Status PagedKvCache::check_room() const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const BlockCounts counts = groups_[g].counts();
    if (can_have(counts, rooms_[g])) continue;
    const std::string where =
        groups_.size() == 1
            ? ""
            : (groups_[g].is_full_attention()
                   ? " for layers that see all tokens"
                   : fmt::format(" for layers with a window of {}", groups_[g].window()));
    return Error{
        ErrorCode::out_of_memory,
        fmt::format(
            "the KV cache is full: {} pages and {} slots are needed{}, {} and {} can "
            "be had (of {} and {} in all)",
            rooms_[g].pages, rooms_[g].slots, where, counts.pages_free + counts.pages_cached,
            counts.slots_free + counts.slots_cached, counts.pages_total, counts.slots_total)};
  }
  return {};
}

// Evicting from one group never takes a free block from another.
void PagedKvCache::make_room() {
  for (size_t g = 0; g < groups_.size(); ++g) make_room_in(g);
}

void PagedKvCache::make_room_in(size_t group) {
  const Room room = rooms_[group];
  BlockGroup& blocks = groups_[group];
  // Slots first: a cached slot of a full group takes the pages behind it along, or moves into
  // pages.
  while (blocks.slots.free_count() < room.slots) evict_slot(group, room.pages);
  while (blocks.pages.free_count() < room.pages) evict_oldest_page(group);
}

void PagedKvCache::evict_oldest_page(size_t group) {
  const BlockGroup& blocks = groups_[group];
  const int32_t page = blocks.pages.oldest_cached();
  const int32_t parked = blocks.parked.oldest();
  KVART_CHECK(page >= 0 || parked != ParkedSlots::none, "no page of group %zu is cached", group);
  const bool is_parked = page < 0 || (parked != ParkedSlots::none &&
                                      blocks.parked.dropped_at(parked) < blocks.dropped_at(page));
  if (blocks.is_full_attention()) {
    evict_node(is_parked ? blocks.parked.node(parked) : blocks.node(page));
  } else if (is_parked) {
    forget_parked(group, parked);
  } else {
    evict_block(group, page);
  }
}

// Without a copy all that is behind the slot would be lost with it, however many pages are free.
// What is older gives way, and no more than that: it would be evicted before the slot anyway.
bool PagedKvCache::park_slot(size_t group, int32_t slot, int64_t pages) {
  BlockGroup& blocks = groups_[group];
  const int32_t block = blocks.block_of({-1, slot});
  const int64_t dropped_at = blocks.dropped_at(block);
  const int64_t free = blocks.parked.pages_per_slot() + pages;
  if (!parks_ || !blocks.has_older(free, dropped_at)) return false;
  while (blocks.pages.free_count() < free) evict_oldest_page(group);
  const int32_t node = blocks.node(block);
  const int32_t parked =
      blocks.parked.park(blocks.pages, blocks.slots.data(slot), node, dropped_at);
  index_.name_block(node, elsewhere(group), parked);
  index_.forget_block(node, static_cast<int>(group));
  blocks.discard(block);
  return true;
}

// The oldest cached slot is parked; else it goes and, in a full group, everything behind it,
// children before parents.
void PagedKvCache::evict_slot(size_t group, int64_t pages) {
  const int32_t oldest = groups_[group].slots.oldest_cached();
  if (park_slot(group, oldest, pages)) return;
  const int32_t slot = groups_[group].block_of({-1, oldest});
  if (!groups_[group].is_full_attention()) return evict_block(group, slot);
  const int32_t top = groups_[group].node(slot);
  int32_t node = top;
  while (true) {
    for (int32_t child = child_with_block(node); child != PrefixIndex::none;) {
      node = child;
      child = child_with_block(node);
    }
    const int32_t parent = index_.parent(node);
    evict_node(node);
    if (node == top) return;
    node = parent;
  }
}

int32_t PagedKvCache::child_with_block(int32_t node) const {
  int32_t child = index_.first_child(node);
  while (child != PrefixIndex::none && index_.block(child, 0) == PrefixIndex::none &&
         parked_block(child, 0) == ParkedSlots::none) {
    child = index_.next_sibling(child);
  }
  return child;
}

// The full group's block is the last to go, and the node with it, unless host memory holds on to
// it.
void PagedKvCache::evict_node(int32_t node) {
  for (size_t g = groups_.size(); g-- > 0;) {
    const int32_t block = index_.block(node, static_cast<int>(g));
    const int32_t parked = parked_block(node, g);
    if (block != PrefixIndex::none) evict_block(g, block);
    if (parked != ParkedSlots::none) forget_parked(g, parked);
  }
}

void PagedKvCache::evict_block(size_t group, int32_t block) {
  if (host_) swap_out(group, block);
  forget_block(group, block);
}

void PagedKvCache::forget_block(size_t group, int32_t block) {
  const int32_t node = groups_[group].node(block);
  groups_[group].discard(block);
  index_.forget_block(node, static_cast<int>(group));
  ++evictions_;
}

void PagedKvCache::forget_parked(size_t group, int32_t parked) {
  const int32_t node = groups_[group].parked.node(parked);
  groups_[group].parked.drop(groups_[group].pages, parked);
  index_.forget_block(node, elsewhere(group));
  ++evictions_;
}

// For a free node of the index: what is in host memory first, and where there is no full group then
// what is cached. False: neither is there.
bool PagedKvCache::forget_any_block() {
  if (host_ && host_->oldest() != HostStore::none) {
    forget_host_block(host_->oldest());
    return true;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t page = groups_[g].pages.oldest_cached();
    const int32_t slot = groups_[g].slots.oldest_cached();
    const int32_t parked = groups_[g].parked.oldest();
    if (parked != ParkedSlots::none) {
      forget_parked(g, parked);
    } else if (page >= 0 || slot >= 0) {
      forget_block(g, groups_[g].block_of(page >= 0 ? BlockPlace{page, -1} : BlockPlace{-1, slot}));
    } else {
      continue;
    }
    return true;
  }
  return false;
}

}  // namespace kvart
