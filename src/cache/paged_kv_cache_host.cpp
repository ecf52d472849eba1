// The second tier of the prefix cache: evicted blocks go to host memory, or sink blocks to pages,
// and come back when a sequence of the same text starts again. Only indexed blocks are ever
// evicted, so only final bytes move.
#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "cache/paged_kv_cache.h"

namespace kvart {

// The block is still where it was, and its node names it there too until it is forgotten there.
void PagedKvCache::swap_out(size_t group, int32_t block) {
  const BlockGroup& from = groups_[group];
  const BlockPlace place = from.place_of(block);
  const BlockPool& pool = place.page >= 0 ? from.pages : from.slots;
  while (!host_->has_room(pool.block_bytes()) && host_->oldest() != HostStore::none) {
    forget_host_block(host_->oldest());
  }
  if (!host_->has_room(pool.block_bytes())) return;  // all that is there is on its way back
  const int32_t node = from.node(block);
  const int32_t stored = host_->store(
      {node, static_cast<int32_t>(group), place.page < 0, index_.key(node).low},
      pool.data(place.page >= 0 ? place.page : place.slot), pool.block_bytes(), pool.memory());
  index_.name_block(node, static_cast<int>(groups_.size() + group), stored);
  ++swapped_out_blocks_;
}

void PagedKvCache::forget_host_block(int32_t block) {
  const HostStore::Label label = host_->label(block);
  host_->drop(block);
  index_.forget_block(label.node, static_cast<int>(groups_.size()) + label.group);
}

// The nodes of the blocks of `tokens` behind the sequence's own.
std::vector<PagedKvCache::FoundBlock> PagedKvCache::find_behind(
    const Sequence& sequence, std::span<const int32_t> tokens) const {
  std::vector<FoundBlock> path;
  FoundBlock last = {sequence.tip, sequence.key};
  // The last token is always computed: its logits are what the caller wants.
  for (auto block = static_cast<size_t>(sequence.committed / block_tokens);
       (block + 1) * block_tokens < tokens.size(); ++block) {
    const auto ids = tokens.subspan(block * block_tokens, block_tokens);
    const ContentKey key = index_.child_key(last.key, ids);
    last = {index_.find({key, last.node, sequence.salt, ids}), key};
    if (last.node == PrefixIndex::none) break;
    path.push_back(last);
  }
  return path;
}

// The most blocks that the sequence can have with those of the path: all are somewhere that queries
// behind them see, and there is room for those that come back beside the others.
int64_t PagedKvCache::longest_restorable(const Sequence& sequence,
                                         std::span<const FoundBlock> path) const {
  const int64_t first = sequence.committed / block_tokens;
  const size_t groups = groups_.size();
  // Blocks that can't be evicted for others, once the path's first n are kept: [n][group].
  std::vector<Room> taken((path.size() + 1) * groups);
  std::vector<int64_t> unbroken;  // blocks there are up to the end of the path, of each group
  for (const Table& table : sequence.tables) unbroken.push_back(first - table.first);
  int64_t longest = first;
  for (size_t n = 0; n < path.size(); ++n) {
    const int64_t end = first + static_cast<int64_t>(n) + 1;
    bool possible = true;
    for (size_t g = 0; g < groups; ++g) {
      const BlockGroup& group = groups_[g];
      Room& all = taken[(n + 1) * groups + g];
      all = taken[n * groups + g];
      const int32_t block = index_.block(path[n].node, static_cast<int>(g));
      const int32_t stored = host_block(path[n].node, g);
      const bool parked = parked_block(path[n].node, g) != ParkedSlots::none;
      const BlockPlace place = block == PrefixIndex::none ? BlockPlace{} : group.place_of(block);
      if (stored != HostStore::none) ++(host_->label(stored).is_slot ? all.slots : all.pages);
      if (parked) ++all.slots;
      if (place.page >= 0 && group.pages.is_cached(place.page)) ++all.pages;
      if (place.slot >= 0 && group.slots.is_cached(place.slot)) ++all.slots;
      const bool there = block != PrefixIndex::none || stored != HostStore::none || parked;
      unbroken[g] = there ? unbroken[g] + 1 : 0;
      const int64_t seen = group.first_visible(end);
      const Room& before = taken[static_cast<size_t>(std::max(seen, first) - first) * groups + g];
      possible = possible && unbroken[g] >= end - seen &&
                 can_have(group.counts(), {all.pages - before.pages, all.slots - before.slots});
    }
    if (possible) longest = end;
  }
  return longest;
}

// A stored block whose bytes have changed, of those that restoring `end` blocks brings back; or
// none.
int32_t PagedKvCache::damaged_block(const Sequence& sequence, std::span<const FoundBlock> path,
                                    int64_t end) const {
  const int64_t first = sequence.committed / block_tokens;
  for (int64_t block = first; block < end; ++block) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (block < groups_[g].first_visible(end)) continue;
      const int32_t stored = host_block(path[static_cast<size_t>(block - first)].node, g);
      if (stored != HostStore::none && !host_->is_intact(stored)) return stored;
    }
  }
  return HostStore::none;
}

// What is there stays there: the sequence refers to it, or it is held where it is.
void PagedKvCache::keep_path(Sequence& sequence, std::span<const FoundBlock> path, int64_t end) {
  const int64_t first = sequence.committed / block_tokens;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<BlockPlace>& places = sequence.tables[g].places;
    places.resize(static_cast<size_t>(end));
    for (int64_t block = std::max(first, groups_[g].first_visible(end)); block < end; ++block) {
      const int32_t node = path[static_cast<size_t>(block - first)].node;
      const int32_t here = index_.block(node, static_cast<int>(g));
      if (here != PrefixIndex::none) {
        places[static_cast<size_t>(block)] = groups_[g].place_of(here);
        groups_[g].retain(places[static_cast<size_t>(block)]);
      } else if (parked_block(node, g) != ParkedSlots::none) {
        groups_[g].parked.hold(parked_block(node, g));
      } else {
        host_->hold(host_block(node, g));
      }
    }
  }
}

// Block by block, parents first: what is evicted for one finds room where the one before it was.
void PagedKvCache::swap_in_path(Sequence& sequence, std::span<const FoundBlock> path, int64_t end) {
  const int64_t first = sequence.committed / block_tokens;
  for (int64_t block = first; block < end; ++block) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      BlockPlace& place = sequence.tables[g].places[static_cast<size_t>(block)];
      if (block < groups_[g].first_visible(end) || place.page >= 0 || place.slot >= 0) continue;
      const int32_t node = path[static_cast<size_t>(block - first)].node;
      place = parked_block(node, g) != ParkedSlots::none ? unpark(g, node) : swap_in(g, node);
    }
  }
}

BlockPlace PagedKvCache::swap_in(size_t group, int32_t node) {
  const int32_t stored = host_block(node, group);
  const bool is_slot = host_->label(stored).is_slot;
  std::fill(rooms_.begin(), rooms_.end(), Room{});
  rooms_[group] = is_slot ? Room{0, 1} : Room{1, 0};
  make_room_in(group);
  BlockGroup& to = groups_[group];
  BlockPlace place;
  (is_slot ? place.slot : place.page) = is_slot ? to.slots.take() : to.pages.take();
  host_->load(stored, is_slot ? to.slots.data(place.slot) : to.pages.data(place.page),
              to.pages.memory());
  name_place(group, node, place);
  forget_host_block(stored);
  ++swapped_in_blocks_;
  return place;
}

BlockPlace PagedKvCache::unpark(size_t group, int32_t node) {
  const int32_t parked = parked_block(node, group);
  std::fill(rooms_.begin(), rooms_.end(), Room{});
  rooms_[group] = {0, 1};
  make_room_in(group);
  BlockGroup& to = groups_[group];
  const BlockPlace place = {-1, to.slots.take()};
  to.parked.load(to.pages, parked, to.slots.data(place.slot));
  name_place(group, node, place);
  to.parked.drop(to.pages, parked);
  index_.forget_block(node, elsewhere(group));
  return place;
}

void PagedKvCache::name_place(size_t group, int32_t node, BlockPlace place) {
  BlockGroup& to = groups_[group];
  index_.name_block(node, static_cast<int>(group), to.block_of(place));
  to.set_node(to.block_of(place), node);
}

Result<int64_t> PagedKvCache::restore(SequenceId id, std::span<const int32_t> tokens) try {
  Sequence& sequence = get(id);
  KVART_CHECK(sequence.committed == sequence.appended() && sequence.committed % block_tokens == 0,
              "sequence %d is not just started", id);
  KVART_CHECK(tokens.size() >= sequence.tokens.size() &&
                  std::equal(sequence.tokens.begin(), sequence.tokens.end(), tokens.begin()),
              "sequence %d was started with other tokens", id);
  if (!(host_ || parks_) || !sequence.shareable) return sequence.committed;
  std::vector<FoundBlock> path;
  int64_t end = 0;
  while (true) {
    path = find_behind(sequence, tokens);
    end = longest_restorable(sequence, path);
    const int32_t damaged = damaged_block(sequence, path, end);
    if (damaged == HostStore::none) break;
    forget_host_block(damaged);
    ++damaged_host_blocks_;
  }
  const int64_t first = sequence.committed / block_tokens;
  if (end == first) return sequence.committed;
  const auto known = tokens.first(static_cast<size_t>(end) * block_tokens);
  for (Table& table : sequence.tables) table.places.reserve(static_cast<size_t>(end));
  sequence.tokens.reserve(known.size());
  // Nothing below needs memory.
  const FoundBlock last = path[static_cast<size_t>(end - first) - 1];
  index_.pin(last.node);
  keep_path(sequence, path, end);
  swap_in_path(sequence, path, end);
  if (sequence.tip != PrefixIndex::none) index_.unpin(sequence.tip);
  sequence.tip = last.node;
  sequence.key = last.key;
  sequence.tokens.assign(known.begin(), known.end());
  // What was parked never left the cache.
  if (parks_) prefix_hits_tokens_ += (end - first) * block_tokens;
  sequence.committed = sequence.cached = sequence.rollback_floor = end * block_tokens;
  drop_unseen(sequence);
  return sequence.committed;
} catch (const std::bad_alloc&) {
  return no_memory();
}

}  // namespace kvart
