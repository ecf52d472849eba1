// What happens to a sequence's blocks: reserve, commit, truncate, fork, release, and who gives way
// when memory is full.
#include "cache/paged_kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace kvart {

namespace {

int64_t blocks_for(int64_t tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

size_t index_of(int64_t block) {
  return static_cast<size_t>(block);
}

}  // namespace

PagedKvCache::PagedKvCache(const CacheConfig& config, PageLayout page_layout,
                           PageLayout slot_layout, Arena pages, Arena slots,
                           std::string_view origin)
    : page_layout_(std::move(page_layout)),
      slot_layout_(std::move(slot_layout)),
      sink_blocks_(config.policy.sink_blocks),
      prefix_caching_(config.prefix_caching),
      pages_(std::move(pages), static_cast<int32_t>(config.plan.groups[0].pages),
             page_layout_.block_bytes(), config.poison_free_blocks),
      slots_(std::move(slots), static_cast<int32_t>(config.plan.groups[0].slots),
             slot_layout_.block_bytes(), config.poison_free_blocks),
      index_(prefix_caching_ ? pages_.count() + slots_.count() : 0, origin,
             config.prefix_key_bits) {}

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
  while (sequences_.contains(next_id_)) {
    next_id_ = next_id_ == std::numeric_limits<SequenceId>::max() ? 0 : next_id_ + 1;
  }
  const SequenceId id = next_id_;
  next_id_ = id == std::numeric_limits<SequenceId>::max() ? 0 : id + 1;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

Result<SequenceId> PagedKvCache::start(std::span<const int32_t> tokens, std::string_view salt) {
  Sequence sequence;
  sequence.shareable = prefix_caching_;
  if (prefix_caching_) {
    sequence.salt = salt;
    sequence.key = index_.root_key(salt);
    // The last token is always computed: its logits are what the caller wants.
    const int64_t blocks_max =
        tokens.empty() ? 0 : static_cast<int64_t>(tokens.size() - 1) / block_tokens;
    for (int64_t block = 0; block < blocks_max; ++block) {
      const auto ids = tokens.subspan(index_of(block) * block_tokens, block_tokens);
      sequence.tokens.insert(sequence.tokens.end(), ids.begin(), ids.end());
      const ContentKey key = index_.child_key(sequence.key, ids);
      const int32_t node = index_.find(lookup(sequence, block, key));
      if (node == PrefixIndex::none) {
        sequence.tokens.resize(index_of(block) * block_tokens);
        break;
      }
      sequence.key = key;
      sequence.blocks.push_back(place_of(node));
      retain(sequence.blocks.back());
    }
    prefix_queries_tokens_ += static_cast<int64_t>(tokens.size());
    prefix_hits_tokens_ += sequence.appended();
  }
  sequence.committed = sequence.cached = sequence.rollback_floor = sequence.appended();
  return add_sequence(std::move(sequence));
}

int64_t PagedKvCache::cached_tokens(SequenceId id) const {
  return get(id).cached;
}

PagedKvCache::Need PagedKvCache::need_of(const Sequence& sequence, int64_t block, int64_t end,
                                         Durability durability) const {
  const int64_t first = sequence.appended() / block_tokens;
  const bool first_exists = sequence.appended() % block_tokens != 0;
  const bool full = end >= (block + 1) * block_tokens;
  Need need;
  need.page = full && !is_sink(block);
  if (block == first && first_exists) return need;  // it was open, so it has a slot
  const bool speculative = durability == Durability::speculative;
  if (full && !is_sink(block) && !speculative) return need;  // goes through the reader's staging
  // The first block fills up in this step, and only this step's queries still read its slot.
  need.slot_of_first = first_exists && !is_sink(first) && !speculative;
  need.slot = !need.slot_of_first;
  return need;
}

Status PagedKvCache::reserve(SequenceId id, std::span<const int32_t> tokens,
                             Durability durability) {
  Sequence& sequence = get(id);
  const bool all_committed = sequence.committed == sequence.appended();
  KVART_CHECK(all_committed || (durability == Durability::speculative &&
                                sequence.uncommitted == Durability::speculative),
              "sequence %d has uncommitted tokens", id);
  if (tokens.empty()) return {};
  const int64_t first = sequence.appended() / block_tokens;
  const int64_t end = sequence.appended() + static_cast<int64_t>(tokens.size());
  const int64_t blocks_end = blocks_for(end);
  int64_t pages = 0;
  int64_t slots = 0;
  for (int64_t block = first; block < blocks_end; ++block) {
    const Need need = need_of(sequence, block, end, durability);
    pages += need.page ? 1 : 0;
    slots += need.slot ? 1 : 0;
  }
  KVART_RETURN_IF_ERROR(make_room(pages, slots));

  std::vector<BlockPlace>& places = sequence.blocks;
  for (int64_t block = first; block < blocks_end; ++block) {
    const Need need = need_of(sequence, block, end, durability);
    BlockPlace place = index_of(block) < places.size() ? places[index_of(block)] : BlockPlace{};
    if (need.page) place.page = pages_.take();
    if (need.slot) place.slot = slots_.take();
    if (need.slot_of_first) {
      place.slot = places[index_of(first)].slot;
      slots_.retain(place.slot);
    }
    places.resize(std::max(places.size(), index_of(block) + 1));
    places[index_of(block)] = place;
  }
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  sequence.uncommitted = durability;
  if (durability == Durability::final) {
    sequence.rollback_floor = (blocks_end - 1) * block_tokens;
  }
  return {};
}

void PagedKvCache::commit(SequenceId id, int64_t length) {
  Sequence& sequence = get(id);
  KVART_CHECK(length >= sequence.committed && length <= sequence.appended(),
              "sequence %d: commit %lld, committed %lld, appended %lld", id,
              static_cast<long long>(length), static_cast<long long>(sequence.committed),
              static_cast<long long>(sequence.appended()));
  for (int64_t block = sequence.committed / block_tokens; block < length / block_tokens; ++block) {
    BlockPlace& place = sequence.blocks[index_of(block)];
    if (!is_sink(block) && place.slot >= 0) {
      drop({-1, place.slot});
      place.slot = -1;
    }
    if (sequence.shareable) share_block(sequence, block);
  }
  sequence.committed = length;
  sequence.rollback_floor = std::max(sequence.rollback_floor, length / block_tokens * block_tokens);
}

// The block enters the index; if its content is there already, the sequence goes on with the
// indexed block.
void PagedKvCache::share_block(Sequence& sequence, int64_t block) {
  BlockPlace& place = sequence.blocks[index_of(block)];
  const ContentKey key = index_.child_key(sequence.key, sequence.block(block));
  const PrefixIndex::Lookup content = lookup(sequence, block, key);
  const int32_t twin = index_.find(content);
  if (twin == PrefixIndex::none) {
    index_.insert(node_of(place), content);
  } else {
    retain(place_of(twin));
    drop(place);
    place = place_of(twin);
  }
  sequence.key = key;
}

Status PagedKvCache::truncate(SequenceId id, int64_t length) {
  Sequence& sequence = get(id);
  if (length == sequence.appended()) return {};
  const bool inside_block = length % block_tokens != 0;
  if (length > sequence.appended() || length < sequence.rollback_floor ||
      (inside_block && sequence.blocks[index_of(length / block_tokens)].slot < 0)) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format(
            "can't roll back to {} tokens: {} are held, and what lies before token "
            "{} is sealed",
            length, sequence.appended(),
            std::max(sequence.rollback_floor, sequence.appended() / block_tokens * block_tokens))};
  }
  while (static_cast<int64_t>(sequence.blocks.size()) > blocks_for(length)) {
    const BlockPlace last = sequence.blocks.back();
    drop(last);
    sequence.blocks.pop_back();
    // Was the slot handed over by the step's first block? That one is full and has its page; its
    // rows are overwritten.
    const size_t open = index_of(sequence.committed / block_tokens);
    if (last.slot >= 0 && open < sequence.blocks.size() &&
        sequence.blocks[open].slot == last.slot) {
      drop({-1, last.slot});
      sequence.blocks[open].slot = -1;
    }
  }
  if (inside_block && sequence.blocks.back().page >= 0) {  // open again, so no longer sealed
    drop({sequence.blocks.back().page, -1});
    sequence.blocks.back().page = -1;
  }
  sequence.tokens.resize(static_cast<size_t>(length));
  sequence.committed = std::min(sequence.committed, length);
  return {};
}

Result<SequenceId> PagedKvCache::fork(SequenceId id) {
  KVART_CHECK(get(id).committed == get(id).appended(), "sequence %d has uncommitted tokens", id);
  const bool has_open = get(id).committed % block_tokens != 0;
  KVART_RETURN_IF_ERROR(make_room(0, has_open ? 1 : 0));
  Sequence copy = get(id);
  copy.cached = copy.committed;
  for (int64_t block = 0; block < copy.committed / block_tokens; ++block) {
    retain(copy.blocks[index_of(block)]);
  }
  if (has_open) {
    const int32_t slot = slots_.take();
    std::memcpy(slots_.data(slot), slots_.data(copy.blocks.back().slot), slots_.block_bytes());
    copy.blocks.back().slot = slot;
  }
  return add_sequence(std::move(copy));
}

void PagedKvCache::release(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  std::vector<BlockPlace>& places = found->second.blocks;
  for (auto place = places.rbegin(); place != places.rend(); ++place) drop(*place);
  sequences_.erase(found);
}

void PagedKvCache::poison(SequenceId id) {
  get(id).shareable = false;
}

void PagedKvCache::reset_prefix_cache() {
  for (BlockPool* pool : {&pages_, &slots_}) {
    while (pool->oldest_cached() >= 0) pool->discard(pool->oldest_cached());
  }
  index_.clear();
  for (auto& [id, sequence] : sequences_) sequence.shareable = false;
}

CacheStats PagedKvCache::stats() const {
  return {pages_.count(),
          pages_.free_count(),
          pages_.cached_count(),
          pages_.referenced_count(),
          slots_.count(),
          slots_.free_count(),
          slots_.cached_count(),
          slots_.referenced_count(),
          prefix_hits_tokens_,
          prefix_queries_tokens_,
          evictions_};
}

Status PagedKvCache::make_room(int64_t pages, int64_t slots) {
  const int64_t pages_available = int64_t{pages_.free_count()} + pages_.cached_count();
  const int64_t slots_available = int64_t{slots_.free_count()} + slots_.cached_count();
  if (pages > pages_available || slots > slots_available) {
    return Error{
        ErrorCode::out_of_memory,
        fmt::format("the KV cache is full: {} pages and {} slots are needed, {} and {} can "
                    "be had (of {} and {} in all)",
                    pages, slots, pages_available, slots_available, pages_.count(),
                    slots_.count())};
  }
  // Slots first: a cached slot takes the pages behind it along.
  while (slots_.free_count() < slots) evict_slot();
  while (pages_.free_count() < pages) evict(pages_.oldest_cached());
  return {};
}

// The oldest cached slot and everything behind it, children before parents.
void PagedKvCache::evict_slot() {
  const int32_t top = node_of({-1, slots_.oldest_cached()});
  int32_t node = top;
  while (true) {
    while (index_.first_child(node) != PrefixIndex::none) node = index_.first_child(node);
    const int32_t parent = index_.parent(node);
    evict(node);
    if (node == top) return;
    node = parent;
  }
}

void PagedKvCache::evict(int32_t node) {
  index_.erase(node);
  const BlockPlace place = place_of(node);
  if (place.page >= 0) {
    pages_.discard(place.page);
  } else {
    slots_.discard(place.slot);
  }
  ++evictions_;
}

BlockPlace PagedKvCache::place_of(int32_t node) const {
  if (node < pages_.count()) return {node, -1};
  return {-1, node - pages_.count()};
}

PrefixIndex::Lookup PagedKvCache::lookup(const Sequence& sequence, int64_t block,
                                         ContentKey key) const {
  const int32_t parent =
      block == 0 ? PrefixIndex::none : node_of(sequence.blocks[index_of(block - 1)]);
  return {key, parent, sequence.salt, sequence.block(block)};
}

void PagedKvCache::retain(BlockPlace place) {
  if (place.page >= 0) pages_.retain(place.page);
  if (place.slot >= 0) slots_.retain(place.slot);
}

void PagedKvCache::drop(BlockPlace place) {
  if (place.page >= 0) pages_.drop(place.page, is_indexed({place.page, -1}));
  if (place.slot >= 0) slots_.drop(place.slot, is_indexed({-1, place.slot}));
}

}  // namespace kvart
