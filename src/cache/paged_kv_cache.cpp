// What happens to a sequence's blocks: reserve, commit, truncate, fork, release. Who gives way when
// memory is full is in paged_kv_cache_eviction.cpp, what goes to host memory and comes back from it
// in paged_kv_cache_host.cpp, and sequences made of copies in paged_kv_cache_imitate.cpp.
#include "cache/paged_kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/check.h"
#include "cache/window_blocks.h"

namespace kvart {

namespace {

int64_t blocks_for(int64_t tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

size_t index_of(int64_t block) {
  return static_cast<size_t>(block);
}

// Capacity for `size` elements. Grows by a factor, so that growing step by step stays cheap.
template <class T>
void grow_capacity(std::vector<T>& list, size_t size) {
  if (size > list.capacity()) list.reserve(std::max(size, 2 * list.capacity()));
}

// Nodes that the index may need. With a full group every node names a block of it, here or in host
// memory. Without one, blocks that have left all windows keep a node for those behind them: a chain
// as long as the context for each sequence, and for each whose blocks host memory may hold.
int32_t index_capacity(const MemoryPlan& plan, int64_t host_blocks) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() - 1;
  const GroupPlan& first = plan.groups.front();
  if (first.window == 0) {
    return static_cast<int32_t>(std::min(most, first.pages + first.slots + host_blocks));
  }
  int64_t nodes = host_blocks;
  int64_t blocks_per_sequence = 1;
  for (const GroupPlan& group : plan.groups) {
    nodes = std::min(most, nodes + group.pages + group.slots);
    blocks_per_sequence += group.pages_per_sequence + group.slots_per_sequence;
  }
  const int64_t chain = std::max<int64_t>(1, blocks_for(plan.context_tokens));
  const int64_t chains = plan.sequences + host_blocks / blocks_per_sequence;
  return static_cast<int32_t>(chains > (most - nodes) / chain ? most : nodes + chains * chain);
}

}  // namespace

PagedKvCache::PagedKvCache(const CacheConfig& config, PageLayout page_layout,
                           PageLayout slot_layout, std::vector<BlockGroup> groups,
                           std::optional<HostStore> host, std::string_view origin)
    : page_layout_(std::move(page_layout)),
      slot_layout_(std::move(slot_layout)),
      sink_blocks_(config.policy.sink_blocks),
      prefix_caching_(config.prefix_caching),
      parks_(prefix_caching_ && sink_blocks_ > 0 && !host),
      groups_(std::move(groups)),
      host_(std::move(host)),
      index_(prefix_caching_ ? index_capacity(config.plan, host_ ? host_->most_blocks() : 0) : 0,
             static_cast<int>(host_ || parks_ ? 2 * groups_.size() : groups_.size()), origin,
             config.prefix_key_bits),
      rooms_(groups_.size()) {}

PagedKvCache::Sequence& PagedKvCache::get(SequenceId id) {
  const auto found = sequences_.find(id);
  KVART_CHECK(found != sequences_.end(), "no sequence %d", id);
  return found->second;
}

const PagedKvCache::Sequence& PagedKvCache::get(SequenceId id) const {
  const auto found = sequences_.find(id);
  KVART_CHECK(found != sequences_.end(), "no sequence %d", id);
  return found->second;
}

SequenceId PagedKvCache::add_sequence(Sequence sequence) {
  const auto next = [](SequenceId id) {
    return id == std::numeric_limits<SequenceId>::max() ? 0 : id + 1;
  };
  SequenceId id = next_id_;
  while (sequences_.contains(id)) id = next(id);
  sequences_.emplace(id, std::move(sequence));
  next_id_ = next(id);
  return id;
}

// The longest cached prefix that queries behind it can do with: all its blocks of a full group, and
// of each windowed group those that are still seen there.
std::vector<PagedKvCache::FoundBlock> PagedKvCache::find_prefix(std::span<const int32_t> tokens,
                                                                std::string_view salt) const {
  // The last token is always computed: its logits are what the caller wants.
  const int64_t blocks_max =
      tokens.empty() ? 0 : static_cast<int64_t>(tokens.size() - 1) / block_tokens;
  std::vector<FoundBlock> chain;
  std::vector<int64_t> unbroken(groups_.size());  // blocks there are up to the end of the chain
  size_t usable = 0;
  FoundBlock last = {PrefixIndex::none, index_.root_key(salt)};
  for (int64_t block = 0; block < blocks_max; ++block) {
    const auto ids = tokens.subspan(index_of(block) * block_tokens, block_tokens);
    const ContentKey key = index_.child_key(last.key, ids);
    last = {index_.find({key, last.node, salt, ids}), key};
    if (last.node == PrefixIndex::none) break;
    chain.push_back(last);
    bool all_seen = true;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const bool here = index_.block(last.node, static_cast<int>(g)) != PrefixIndex::none;
      unbroken[g] = here ? unbroken[g] + 1 : 0;
      all_seen = all_seen && unbroken[g] >= block + 1 - groups_[g].first_visible(block + 1);
    }
    if (all_seen) usable = chain.size();
  }
  chain.resize(usable);
  return chain;
}

void PagedKvCache::take_prefix(Sequence& sequence, std::span<const FoundBlock> prefix) {
  if (prefix.empty()) return;
  const auto end = static_cast<int64_t>(prefix.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    Table& table = sequence.tables[g];
    table.first = groups_[g].first_visible(end);
    for (int64_t block = table.first; block < end; ++block) {
      BlockPlace& place = table.places[index_of(block)];
      place = groups_[g].place_of(index_.block(prefix[index_of(block)].node, static_cast<int>(g)));
      groups_[g].retain(place);
    }
  }
  sequence.tip = prefix.back().node;
  sequence.key = prefix.back().key;
  index_.pin(sequence.tip);
}

Result<SequenceId> PagedKvCache::start(std::span<const int32_t> tokens, std::string_view salt) try {
  Sequence sequence;
  sequence.tables.resize(groups_.size());
  sequence.shareable = prefix_caching_;
  std::vector<FoundBlock> prefix;
  if (prefix_caching_) {
    sequence.salt = salt;
    sequence.key = index_.root_key(salt);
    prefix = find_prefix(tokens, salt);
    const auto known = tokens.first(prefix.size() * block_tokens);
    sequence.tokens.assign(known.begin(), known.end());
    for (Table& table : sequence.tables) table.places.resize(prefix.size());
  }
  sequence.committed = sequence.cached = sequence.rollback_floor = sequence.appended();
  const SequenceId id = add_sequence(std::move(sequence));
  // Nothing below needs memory.
  take_prefix(get(id), prefix);
  if (prefix_caching_) {
    prefix_queries_tokens_ += static_cast<int64_t>(tokens.size());
    prefix_hits_tokens_ += static_cast<int64_t>(prefix.size()) * block_tokens;
  }
  return id;
} catch (const std::bad_alloc&) {
  return no_memory();
}

int64_t PagedKvCache::cached_tokens(SequenceId id) const {
  return get(id).cached;
}

// Blocks of the prefix that others refer to cost nothing, but don't become free either when they
// leave the window.
PagedKvCache::Room PagedKvCache::room_to_start(size_t group, std::span<const FoundBlock> prefix,
                                               int64_t length, int64_t step_tokens) const {
  const BlockGroup& blocks = groups_[group];
  const auto first = static_cast<int64_t>(prefix.size());
  const int64_t end = blocks_for(length);
  const int64_t sealed = std::max(first, sink_blocks_);  // the blocks from this one on get pages
  Room room;
  room.pages = std::max<int64_t>(0, length / block_tokens - sealed);
  room.slots = std::max<int64_t>(0, std::min(end, sink_blocks_) - first) + (end > sealed ? 1 : 0);
  for (int64_t block = blocks.first_visible(first); block < first; ++block) {
    const int32_t node = prefix[index_of(block)].node;
    const BlockPlace place = blocks.place_of(index_.block(node, static_cast<int>(group)));
    if (place.page >= 0 && blocks.pages.is_cached(place.page)) ++room.pages;
    if (place.slot >= 0 && blocks.slots.is_cached(place.slot)) ++room.slots;
  }
  if (blocks.is_full_attention()) return room;
  // Never more at a time than the plan counts for a sequence and its step.
  const int64_t n = blocks_in_window(blocks.window());
  room.pages = std::min(room.pages, n + 1 + std::min(n, more_blocks_filled(step_tokens)));
  room.slots = std::min(room.slots, n + 2 + std::min(n, more_blocks_begun(step_tokens)));
  return room;
}

bool PagedKvCache::can_start(std::span<const int32_t> tokens, std::string_view salt, int64_t length,
                             int64_t step_tokens) const try {
  KVART_CHECK(length >= static_cast<int64_t>(tokens.size()) && step_tokens > 0,
              "%lld tokens in steps of %lld", static_cast<long long>(length),
              static_cast<long long>(step_tokens));
  std::vector<FoundBlock> prefix;
  if (prefix_caching_) prefix = find_prefix(tokens, salt);
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!can_have(groups_[g].counts(), room_to_start(g, prefix, length, step_tokens))) return false;
  }
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

PagedKvCache::Need PagedKvCache::need_of(const BlockGroup& group, const Growth& growth,
                                         int64_t block) const {
  const bool full = growth.end >= (block + 1) * block_tokens;
  const bool speculative = growth.durability == Durability::speculative;
  // After a final step no query comes before its last block, see truncate.
  const bool seen = speculative || block >= group.first_visible(growth.blocks_end() - 1);
  Need need;
  need.page = full && !is_sink(block) && seen;
  if (block == growth.first && growth.first_exists) return need;  // it was open, so it has a slot
  if (!seen) return need;
  if (full && !is_sink(block) && !speculative) return need;  // goes through the reader's staging
  // The first block fills up in this step, and only this step's queries still read its slot.
  need.slot_of_first = growth.first_exists && !is_sink(growth.first) && !speculative;
  need.slot = !need.slot_of_first;
  return need;
}

PagedKvCache::Room PagedKvCache::room_for(const BlockGroup& group, const Growth& growth) const {
  Room room;
  for (int64_t block = growth.first; block < growth.blocks_end(); ++block) {
    const Need need = need_of(group, growth, block);
    room.pages += need.page ? 1 : 0;
    room.slots += need.slot ? 1 : 0;
  }
  return room;
}

// All the memory that appending and the commit after it need.
void PagedKvCache::take_memory(Sequence& sequence, const Growth& growth) {
  for (Table& table : sequence.tables) {
    grow_capacity(table.places, index_of(growth.blocks_end()));
  }
  grow_capacity(sequence.tokens, static_cast<size_t>(growth.end));
  index_.reserve(uncommitted_blocks_ + growth.end / block_tokens - growth.first);
}

void PagedKvCache::add_places(BlockGroup& group, const Growth& growth,
                              std::vector<BlockPlace>& places) {
  places.resize(index_of(growth.blocks_end()));
  for (int64_t block = growth.first; block < growth.blocks_end(); ++block) {
    const Need need = need_of(group, growth, block);
    BlockPlace& place = places[index_of(block)];
    if (need.page) place.page = group.pages.take();
    if (need.slot) place.slot = group.slots.take();
    if (need.slot_of_first) {
      place.slot = places[index_of(growth.first)].slot;
      group.slots.retain(place.slot);
    }
  }
}

PagedKvCache::Growth PagedKvCache::growth_of(const Sequence& sequence, int64_t tokens,
                                             Durability durability) {
  return {sequence.appended() / block_tokens, sequence.appended() % block_tokens != 0,
          sequence.appended() + tokens, durability};
}

bool PagedKvCache::has_room(SequenceId id, int64_t tokens) const {
  const Sequence& sequence = get(id);
  KVART_CHECK(sequence.committed == sequence.appended(), "sequence %d has uncommitted tokens", id);
  KVART_CHECK(tokens >= 0 && tokens <= std::numeric_limits<int32_t>::max(), "%lld tokens",
              static_cast<long long>(tokens));
  if (tokens == 0) return true;
  const Growth growth = growth_of(sequence, tokens, Durability::final);
  return std::all_of(groups_.begin(), groups_.end(), [&](const BlockGroup& group) {
    return can_have(group.counts(), room_for(group, growth));
  });
}

Status PagedKvCache::reserve(SequenceId id, std::span<const int32_t> tokens,
                             Durability durability) try {
  Sequence& sequence = get(id);
  const bool all_committed = sequence.committed == sequence.appended();
  KVART_CHECK(all_committed || (durability == Durability::speculative &&
                                sequence.uncommitted == Durability::speculative),
              "sequence %d has uncommitted tokens", id);
  if (tokens.empty()) return {};
  const Growth growth = growth_of(sequence, static_cast<int64_t>(tokens.size()), durability);
  for (size_t g = 0; g < groups_.size(); ++g) rooms_[g] = room_for(groups_[g], growth);
  KVART_RETURN_IF_ERROR(check_room());
  take_memory(sequence, growth);
  // Nothing below needs memory.
  make_room();
  uncommitted_blocks_ += growth.end / block_tokens - growth.first;
  for (size_t g = 0; g < groups_.size(); ++g) {
    add_places(groups_[g], growth, sequence.tables[g].places);
  }
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  sequence.uncommitted = durability;
  if (durability == Durability::final) {
    sequence.rollback_floor = (growth.blocks_end() - 1) * block_tokens;
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_memory();
}

void PagedKvCache::unreserve(SequenceId id) {
  Sequence& sequence = get(id);
  const int64_t length = sequence.committed;
  for (size_t g = 0; g < groups_.size(); ++g) {
    Table& table = sequence.tables[g];
    // The committed tokens still have all that queries behind them see.
    KVART_CHECK(table.first == groups_[g].first_visible(length / block_tokens), "sequence %d", id);
    while (static_cast<int64_t>(table.places.size()) > blocks_for(length)) {
      groups_[g].drop(table.places.back());
      table.places.pop_back();
    }
    if (length % block_tokens == 0) continue;
    BlockPlace& open = table.places.back();
    KVART_CHECK(open.slot >= 0, "sequence %d: the open block has no slot", id);
    groups_[g].drop({std::exchange(open.page, -1), -1});
  }
  uncommitted_blocks_ -= sequence.uncommitted_blocks();
  sequence.tokens.resize(static_cast<size_t>(length));
  sequence.rollback_floor = length / block_tokens * block_tokens;
}

void PagedKvCache::commit(SequenceId id, int64_t length) {
  Sequence& sequence = get(id);
  KVART_CHECK(length >= sequence.committed && length <= sequence.appended(),
              "sequence %d: commit %lld, committed %lld, appended %lld", id,
              static_cast<long long>(length), static_cast<long long>(sequence.committed),
              static_cast<long long>(sequence.appended()));
  for (int64_t block = sequence.committed / block_tokens; block < length / block_tokens; ++block) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      BlockPlace& place = sequence.tables[g].places[index_of(block)];
      if (is_sink(block) || place.slot < 0) continue;
      groups_[g].drop({-1, place.slot});
      place.slot = -1;
    }
    if (sequence.shareable) share_block(sequence, block);
  }
  uncommitted_blocks_ -= length / block_tokens - sequence.committed / block_tokens;
  sequence.committed = length;
  sequence.rollback_floor = std::max(sequence.rollback_floor, length / block_tokens * block_tokens);
  drop_unseen(sequence);
}

// Gives back what no query from the rollback floor on sees.
void PagedKvCache::drop_unseen(Sequence& sequence) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Table& table = sequence.tables[g];
    const int64_t seen = groups_[g].first_visible(sequence.rollback_floor / block_tokens);
    for (; table.first < seen; ++table.first) {
      groups_[g].drop(std::exchange(table.places[index_of(table.first)], BlockPlace{}));
    }
  }
}

// The block enters the index; where its content is there already, the sequence goes on with the
// indexed blocks.
void PagedKvCache::share_block(Sequence& sequence, int64_t block) {
  const ContentKey key = index_.child_key(sequence.key, sequence.block(block));
  const PrefixIndex::Lookup content = {key, sequence.tip, sequence.salt, sequence.block(block)};
  int32_t node = index_.find(content);
  if (node != PrefixIndex::none) {
    index_.pin(node);
  } else {
    while (index_.is_full() && forget_any_block()) {
    }
    // Chains of running sequences fill it: this one is longer than was planned for.
    if (index_.is_full()) return stop_sharing(sequence);
    node = index_.insert(content, std::move(sequence.salt));
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    share_place(g, node, sequence.tables[g].places[index_of(block)]);
  }
  if (sequence.tip != PrefixIndex::none) index_.unpin(sequence.tip);
  sequence.tip = node;
  sequence.key = key;
}

void PagedKvCache::share_place(size_t group, int32_t node, BlockPlace& place) {
  if (place.page < 0 && place.slot < 0) return;
  BlockGroup& blocks = groups_[group];
  const int32_t indexed = index_.block(node, static_cast<int>(group));
  const int32_t own = blocks.block_of(place);
  if (indexed == PrefixIndex::none) {
    index_.name_block(node, static_cast<int>(group), own);
    blocks.set_node(own, node);
    // The same bytes, computed again.
    const int32_t stored = host_block(node, group);
    const int32_t parked = parked_block(node, group);
    if (stored != HostStore::none) forget_host_block(stored);
    if (parked != ParkedSlots::none) forget_parked(group, parked);
  } else {
    const BlockPlace twin = blocks.place_of(indexed);
    blocks.retain(twin);
    blocks.drop(place);
    place = twin;
  }
}

void PagedKvCache::stop_sharing(Sequence& sequence) {
  sequence.shareable = false;
  if (sequence.tip != PrefixIndex::none) index_.unpin(sequence.tip);
  sequence.tip = PrefixIndex::none;
}

Status PagedKvCache::truncate(SequenceId id, int64_t length) try {
  Sequence& sequence = get(id);
  if (length == sequence.appended()) return {};
  const bool in_range = length < sequence.appended() && length >= sequence.rollback_floor;
  const bool has_rows =
      !in_range || length % block_tokens == 0 ||
      std::all_of(sequence.tables.begin(), sequence.tables.end(), [&](const Table& table) {
        return table.places[index_of(length / block_tokens)].slot >= 0;
      });
  if (!in_range || !has_rows) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format(
            "can't roll back to {} tokens: {} are held, and what lies before token "
            "{} is sealed",
            length, sequence.appended(),
            std::max(sequence.rollback_floor, sequence.appended() / block_tokens * block_tokens))};
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    truncate_table(groups_[g], sequence, length, sequence.tables[g]);
  }
  uncommitted_blocks_ -= sequence.uncommitted_blocks();
  sequence.tokens.resize(static_cast<size_t>(length));
  sequence.committed = std::min(sequence.committed, length);
  uncommitted_blocks_ += sequence.uncommitted_blocks();
  return {};
} catch (const std::bad_alloc&) {
  return no_memory();
}

void PagedKvCache::truncate_table(BlockGroup& group, const Sequence& sequence, int64_t length,
                                  Table& table) {
  std::vector<BlockPlace>& places = table.places;
  while (static_cast<int64_t>(places.size()) > blocks_for(length)) {
    const BlockPlace last = places.back();
    group.drop(last);
    places.pop_back();
    // Was the slot handed over by the step's first block? That one is full and has its page, or is
    // not seen any more; its rows are overwritten.
    const size_t open = index_of(sequence.committed / block_tokens);
    if (last.slot >= 0 && open < places.size() && places[open].slot == last.slot) {
      group.drop({-1, last.slot});
      places[open].slot = -1;
    }
  }
  if (length % block_tokens != 0 && places.back().page >= 0) {  // open again, so no longer sealed
    group.drop({places.back().page, -1});
    places.back().page = -1;
  }
}

Result<SequenceId> PagedKvCache::fork(SequenceId id) try {
  const Sequence& parent = get(id);
  KVART_CHECK(parent.committed == parent.appended(), "sequence %d has uncommitted tokens", id);
  const bool has_open = parent.committed % block_tokens != 0;
  std::fill(rooms_.begin(), rooms_.end(), Room{0, has_open ? 1 : 0});
  KVART_RETURN_IF_ERROR(check_room());
  const SequenceId child = add_sequence(parent);
  // Nothing below needs memory.
  make_room();
  Sequence& copy = get(child);
  copy.cached = copy.committed;
  if (copy.tip != PrefixIndex::none) index_.pin(copy.tip);
  for (size_t g = 0; g < groups_.size(); ++g) {
    BlockGroup& group = groups_[g];
    Table& table = copy.tables[g];
    for (int64_t block = table.first; block < copy.committed / block_tokens; ++block) {
      group.retain(table.places[index_of(block)]);
    }
    if (!has_open) continue;
    const int32_t slot = group.slots.take();
    group.slots.memory().copy(group.slots.data(slot), group.slots.data(table.places.back().slot),
                              group.slots.block_bytes());
    table.places.back().slot = slot;
  }
  return child;
} catch (const std::bad_alloc&) {
  return no_memory();
}

void PagedKvCache::release(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const std::vector<BlockPlace>& places = sequence.tables[g].places;
    for (auto place = places.rbegin(); place != places.rend(); ++place) groups_[g].drop(*place);
  }
  stop_sharing(sequence);
  uncommitted_blocks_ -= sequence.uncommitted_blocks();
  sequences_.erase(found);
}

void PagedKvCache::poison(SequenceId id) {
  stop_sharing(get(id));
}

void PagedKvCache::reset_prefix_cache() {
  for (BlockGroup& group : groups_) group.forget_nodes();
  index_.clear();
  if (host_) host_->clear();
  for (auto& [id, sequence] : sequences_) {
    sequence.shareable = false;
    sequence.tip = PrefixIndex::none;
  }
}

uint64_t PagedKvCache::allocated_bytes() const {
  uint64_t bytes = 0;
  for (const BlockGroup& group : groups_) {
    bytes += uint64_t{group.pages.arena_bytes()} + group.slots.arena_bytes();
  }
  return bytes;
}

CacheStats PagedKvCache::stats() const {
  CacheStats sum;
  for (const BlockGroup& group : groups_) {
    const BlockCounts counts = group.counts();
    sum.pages_total += counts.pages_total;
    sum.pages_free += counts.pages_free;
    sum.pages_cached += counts.pages_cached;
    sum.pages_referenced += counts.pages_referenced;
    sum.slots_total += counts.slots_total;
    sum.slots_free += counts.slots_free;
    sum.slots_cached += counts.slots_cached;
    sum.slots_referenced += counts.slots_referenced;
    sum.parked_slots += group.parked.count();
    sum.parked_pages += group.parked.pages();
    if (counts.pages_total == 0) continue;
    const double share =
        static_cast<double>(counts.pages_referenced) / static_cast<double>(counts.pages_total);
    sum.fullest_share = std::max(sum.fullest_share, share);
  }
  sum.prefix_hits_tokens = prefix_hits_tokens_;
  sum.prefix_queries_tokens = prefix_queries_tokens_;
  sum.evictions = evictions_;
  sum.swapped_out_blocks = swapped_out_blocks_;
  sum.swapped_in_blocks = swapped_in_blocks_;
  sum.damaged_host_blocks = damaged_host_blocks_;
  if (host_) {
    sum.host_blocks = host_->blocks();
    sum.host_bytes_used = static_cast<int64_t>(host_->bytes_used());
    sum.host_bytes_total = static_cast<int64_t>(host_->bytes_total());
  }
  return sum;
}

}  // namespace kvart
