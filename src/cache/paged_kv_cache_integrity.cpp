// The invariants of PagedKvCache, as code that aborts when one is broken.
#include <algorithm>

#include "base/check.h"
#include "cache/paged_kv_cache.h"

namespace kvart {

namespace {

// Who is known to refer to a block: the first entry that was seen, and how many there are.
struct Owner {
  int32_t references = 0;
  int64_t block = -1;
  std::span<const int32_t> tokens;  // of the owner, up to the end of its committed block
};

void add_owner(Owner& owner, int64_t block, std::span<const int32_t> tokens_before) {
  ++owner.references;
  if (owner.references == 1) {
    owner.block = block;
    owner.tokens = tokens_before;
    return;
  }
  KVART_CHECK(owner.block == block && std::equal(owner.tokens.begin(), owner.tokens.end(),
                                                 tokens_before.begin(), tokens_before.end()),
              "two sequences share a block of different tokens");
}

}  // namespace

void PagedKvCache::check_integrity() const {
  index_.check_integrity();
  int64_t uncommitted = 0;
  int64_t to_share = 0;
  for (const auto& [id, sequence] : sequences_) {
    uncommitted += sequence.uncommitted_blocks();
    to_share += sequence.shareable ? sequence.uncommitted_blocks() : 0;
    check_sequence(sequence);
    for (size_t g = 0; g < groups_.size(); ++g) check_table(sequence, g);
    if (sequence.shareable) check_shared_prefix(sequence);
  }
  KVART_CHECK(uncommitted == uncommitted_blocks_, "%lld uncommitted blocks, %lld counted",
              static_cast<long long>(uncommitted), static_cast<long long>(uncommitted_blocks_));
  KVART_CHECK(index_.is_reserved(to_share), "no nodes for %lld blocks",
              static_cast<long long>(to_share));
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].pages.check_integrity();
    groups_[g].slots.check_integrity();
    check_references(g);
    check_index(g);
    check_parked(g);
  }
  if (groups_[0].is_full_attention()) check_eviction_order();
  if (host_) check_host();
}

void PagedKvCache::check_sequence(const Sequence& sequence) const {
  KVART_CHECK(sequence.committed >= 0 && sequence.committed <= sequence.appended(),
              "committed %lld of %lld", static_cast<long long>(sequence.committed),
              static_cast<long long>(sequence.appended()));
  KVART_CHECK(sequence.tables.size() == groups_.size(), "%zu tables", sequence.tables.size());
  const bool has_tip = sequence.tip != PrefixIndex::none;
  KVART_CHECK(has_tip == (sequence.shareable && sequence.committed >= block_tokens),
              "tip %d at %lld", sequence.tip, static_cast<long long>(sequence.committed));
}

// The table covers the tokens exactly, and each block has the places that its state asks for: all
// that queries to come see, and in the course of a step what its own queries see.
void PagedKvCache::check_table(const Sequence& sequence, size_t group) const {
  const Table& table = sequence.tables[group];
  const auto blocks = static_cast<int64_t>(table.places.size());
  KVART_CHECK(blocks == (sequence.appended() + block_tokens - 1) / block_tokens,
              "%lld blocks, %lld tokens", static_cast<long long>(blocks),
              static_cast<long long>(sequence.appended()));
  const int64_t seen = groups_[group].first_visible(sequence.rollback_floor / block_tokens);
  const bool in_step = sequence.committed < sequence.appended();
  KVART_CHECK(in_step ? table.first <= seen : table.first == seen,
              "blocks from %lld on, %lld are seen", static_cast<long long>(table.first),
              static_cast<long long>(seen));
  for (int64_t block = 0; block < blocks; ++block) {
    const BlockPlace place = table.places[static_cast<size_t>(block)];
    const bool full = sequence.appended() >= (block + 1) * block_tokens;
    const bool sealed = sequence.committed >= (block + 1) * block_tokens;
    const bool has_page = full && !is_sink(block);
    KVART_CHECK(block >= table.first || (place.page < 0 && place.slot < 0), "block %lld is held",
                static_cast<long long>(block));
    KVART_CHECK(place.page < 0 || has_page, "block %lld: page %d", static_cast<long long>(block),
                place.page);
    KVART_CHECK(block < seen || has_page == (place.page >= 0), "block %lld: page %d",
                static_cast<long long>(block), place.page);
    KVART_CHECK(block < seen || place.slot >= 0 || has_page, "block %lld has no slot",
                static_cast<long long>(block));
    KVART_CHECK(place.slot < 0 || !sealed || is_sink(block), "sealed block %lld has slot %d",
                static_cast<long long>(block), place.slot);
    KVART_CHECK(
        place.page < groups_[group].pages.count() && place.slot < groups_[group].slots.count(),
        "page %d, slot %d", place.page, place.slot);
  }
}

// A shareable sequence's committed full blocks are a path in the index, and its blocks those that
// the path names.
void PagedKvCache::check_shared_prefix(const Sequence& sequence) const {
  int32_t node = sequence.tip;
  for (int64_t block = sequence.committed / block_tokens; block-- > 0;) {
    KVART_CHECK(index_.contains(node), "block %lld: node %d", static_cast<long long>(block), node);
    const auto ids = index_.tokens(node);
    KVART_CHECK(std::equal(ids.begin(), ids.end(), sequence.block(block).begin()),
                "block %lld: node %d has other tokens", static_cast<long long>(block), node);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const BlockPlace place = sequence.tables[g].places[static_cast<size_t>(block)];
      if (place.page < 0 && place.slot < 0) continue;
      KVART_CHECK(index_.block(node, static_cast<int>(g)) == groups_[g].block_of(place),
                  "block %lld: node %d names another block", static_cast<long long>(block), node);
    }
    node = index_.parent(node);
  }
  KVART_CHECK(node == PrefixIndex::none, "node %d before the first block", node);
}

// Reference counts are the numbers of table entries; a block has two owners only when both hold the
// same committed prefix, or when one sequence hands a slot from its first block to its last.
void PagedKvCache::check_references(size_t group) const {
  const BlockPool& page_pool = groups_[group].pages;
  const BlockPool& slot_pool = groups_[group].slots;
  std::vector<Owner> pages(static_cast<size_t>(page_pool.count()));
  std::vector<Owner> slots(static_cast<size_t>(slot_pool.count()));
  for (const auto& [id, sequence] : sequences_) {
    const std::vector<BlockPlace>& places = sequence.tables[group].places;
    const int32_t last_slot = places.empty() ? -1 : places.back().slot;
    for (size_t block = 0; block < places.size(); ++block) {
      const BlockPlace place = places[block];
      const auto index = static_cast<int64_t>(block);
      const size_t end = std::min(sequence.tokens.size(), (block + 1) * block_tokens);
      const bool sealed = sequence.committed >= (index + 1) * block_tokens;
      const bool last = block + 1 == places.size();
      const auto before = std::span(sequence.tokens).first(end);
      if (place.page >= 0) {
        Owner& owner = pages[static_cast<size_t>(place.page)];
        add_owner(owner, index, before);
        KVART_CHECK(sealed || page_pool.references(place.page) == 1, "open page %d is shared",
                    place.page);
      }
      if (place.slot < 0) continue;
      Owner& owner = slots[static_cast<size_t>(place.slot)];
      if (place.slot == last_slot && !last && !sealed) {  // handed over: counted, owned by the last
        ++owner.references;
        KVART_CHECK(slot_pool.references(place.slot) == 2, "slot %d", place.slot);
        owner.block = static_cast<int64_t>(places.size()) - 1;
        owner.tokens = sequence.tokens;
        continue;
      }
      add_owner(owner, index, before);
      KVART_CHECK(sealed || slot_pool.references(place.slot) == owner.references,
                  "open slot %d is shared", place.slot);
    }
  }
  const std::vector<bool> parked = groups_[group].parked.check_integrity(page_pool);
  for (int32_t page = 0; page < page_pool.count(); ++page) {
    const auto index = static_cast<size_t>(page);
    KVART_CHECK(page_pool.references(page) == pages[index].references + (parked[index] ? 1 : 0),
                "page %d", page);
  }
  for (int32_t slot = 0; slot < slot_pool.count(); ++slot) {
    KVART_CHECK(slot_pool.references(slot) == slots[static_cast<size_t>(slot)].references,
                "slot %d", slot);
  }
}

// Blocks and nodes name each other; a node's blocks are live, and cached blocks have a node.
void PagedKvCache::check_index(size_t group) const {
  const BlockGroup& blocks = groups_[group];
  int32_t named = 0;
  for (int32_t block = 0; block < blocks.pages.count() + blocks.slots.count(); ++block) {
    const BlockPlace place = blocks.place_of(block);
    const BlockPool& pool = place.page >= 0 ? blocks.pages : blocks.slots;
    const int32_t number = place.page >= 0 ? place.page : place.slot;
    const int32_t node = blocks.node(block);
    named += node != PrefixIndex::none ? 1 : 0;
    KVART_CHECK(node != PrefixIndex::none ? !pool.is_free(number) : !pool.is_cached(number),
                "block %d of node %d", block, node);
    KVART_CHECK(node == PrefixIndex::none ||
                    (index_.contains(node) && index_.block(node, static_cast<int>(group)) == block),
                "node %d does not name block %d", node, block);
  }
  for (int32_t node = 0; node < index_.end(); ++node) {
    named -= index_.block(node, static_cast<int>(group)) != PrefixIndex::none ? 1 : 0;
  }
  KVART_CHECK(named == 0, "%d blocks more than nodes", named);
}

int64_t PagedKvCache::age_of(int32_t node) const {
  const BlockGroup& full = groups_[0];
  const int32_t parked = parked_block(node, 0);
  if (parked != ParkedSlots::none) return full.parked.dropped_at(parked);
  const int32_t block = index_.block(node, 0);
  const BlockPlace place = full.place_of(block);
  const bool cached =
      place.page >= 0 ? full.pages.is_cached(place.page) : full.slots.is_cached(place.slot);
  return cached ? full.dropped_at(block) : -1;
}

// In a full group every node has a block, parked perhaps, or its blocks are all in host memory and
// so are those of its descendants. A block that is not referenced has only descendants that are
// not, dropped before it: what eviction relies on. No node has a block in another group that is in
// use while that one is not.
void PagedKvCache::check_eviction_order() const {
  const auto is_here = [&](int32_t node) {
    return index_.block(node, 0) != PrefixIndex::none || parked_block(node, 0) != ParkedSlots::none;
  };
  for (int32_t node = 0; node < index_.end(); ++node) {
    if (!index_.contains(node)) continue;
    const int32_t parent = index_.parent(node);
    if (!is_here(node)) {
      KVART_CHECK(host_, "node %d has no block", node);
      for (size_t g = 1; g < groups_.size(); ++g) {
        KVART_CHECK(index_.block(node, static_cast<int>(g)) == PrefixIndex::none,
                    "node %d has no block of all layers, but one of group %zu", node, g);
      }
      continue;
    }
    KVART_CHECK(parent == PrefixIndex::none || is_here(parent),
                "node %d has a block, its parent %d has none", node, parent);
    if (parent != PrefixIndex::none && age_of(parent) >= 0) {
      KVART_CHECK(age_of(node) >= 0 && age_of(node) < age_of(parent),
                  "node %d is younger than its parent %d", node, parent);
    }
    for (size_t g = 1; age_of(node) >= 0 && g < groups_.size(); ++g) {
      const int32_t block = index_.block(node, static_cast<int>(g));
      if (block == PrefixIndex::none) continue;
      const BlockPlace place = groups_[g].place_of(block);
      KVART_CHECK(place.page >= 0 ? groups_[g].pages.is_cached(place.page)
                                  : groups_[g].slots.is_cached(place.slot),
                  "block %d of group %zu is in use", block, g);
    }
  }
}

// Nodes and parked blocks name each other, and a block is at one place only.
void PagedKvCache::check_parked(size_t group) const {
  const ParkedSlots& parked = groups_[group].parked;
  int64_t named = 0;
  for (int32_t node = 0; node < index_.end(); ++node) {
    const int32_t block = parked_block(node, group);
    if (block == ParkedSlots::none) continue;
    ++named;
    KVART_CHECK(parked.contains(block) && parked.node(block) == node &&
                    index_.block(node, static_cast<int>(group)) == PrefixIndex::none,
                "node %d, parked block %d", node, block);
  }
  KVART_CHECK(named == parked.count(), "%lld parked blocks have a node, of %lld",
              static_cast<long long>(named), static_cast<long long>(parked.count()));
}

// Nodes and blocks in host memory name each other, and a block is at one place only.
void PagedKvCache::check_host() const {
  host_->check_integrity();
  int32_t named = 0;
  for (int32_t node = 0; node < index_.end(); ++node) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int32_t block = host_block(node, g);
      if (block == HostStore::none) continue;
      ++named;
      KVART_CHECK(index_.block(node, static_cast<int>(g)) == PrefixIndex::none,
                  "group %zu of node %d is at two places", g, node);
      KVART_CHECK(host_->contains(block), "node %d names stored block %d", node, block);
      const HostStore::Label& label = host_->label(block);
      const BlockPool& pool = label.is_slot ? groups_[g].slots : groups_[g].pages;
      KVART_CHECK(label.node == node && label.group == static_cast<int32_t>(g) &&
                      label.key == index_.key(node).low &&
                      host_->size_bytes(block) == pool.block_bytes(),
                  "stored block %d of node %d", block, node);
    }
  }
  KVART_CHECK(named == host_->blocks(), "%d stored blocks have a node, of %d", named,
              host_->blocks());
}

}  // namespace kvart
