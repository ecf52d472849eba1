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
  pages_.check_integrity();
  slots_.check_integrity();
  index_.check_integrity();
  for (const auto& [id, sequence] : sequences_) {
    check_sequence(sequence);
    if (sequence.shareable) check_shared_prefix(sequence);
  }
  check_references();
  if (prefix_caching_) check_index();
}

// The table covers the tokens exactly, and each block has the places that its state asks for.
void PagedKvCache::check_sequence(const Sequence& sequence) const {
  const int64_t appended = sequence.appended();
  KVART_CHECK(sequence.committed >= 0 && sequence.committed <= appended, "committed %lld of %lld",
              static_cast<long long>(sequence.committed), static_cast<long long>(appended));
  const auto blocks = static_cast<int64_t>(sequence.blocks.size());
  KVART_CHECK(blocks == (appended + block_tokens - 1) / block_tokens, "%lld blocks, %lld tokens",
              static_cast<long long>(blocks), static_cast<long long>(appended));
  for (int64_t block = 0; block < blocks; ++block) {
    const BlockPlace place = sequence.blocks[static_cast<size_t>(block)];
    const bool full = appended >= (block + 1) * block_tokens;
    const bool sealed = sequence.committed >= (block + 1) * block_tokens;
    KVART_CHECK((place.page >= 0) == (full && !is_sink(block)), "block %lld: page %d",
                static_cast<long long>(block), place.page);
    KVART_CHECK(place.slot >= 0 || (full && !is_sink(block)), "block %lld has no slot",
                static_cast<long long>(block));
    KVART_CHECK(place.slot < 0 || !sealed || is_sink(block), "sealed block %lld has slot %d",
                static_cast<long long>(block), place.slot);
    KVART_CHECK(place.page < pages_.count() && place.slot < slots_.count(), "page %d, slot %d",
                place.page, place.slot);
  }
}

// A shareable sequence's committed full blocks are a path in the index.
void PagedKvCache::check_shared_prefix(const Sequence& sequence) const {
  int32_t parent = PrefixIndex::none;
  for (int64_t block = 0; block < sequence.committed / block_tokens; ++block) {
    const BlockPlace place = sequence.blocks[static_cast<size_t>(block)];
    const int32_t node = node_of(place);
    KVART_CHECK(index_.contains(node) && index_.parent(node) == parent, "block %lld: node %d",
                static_cast<long long>(block), node);
    const auto ids = index_.tokens(node);
    KVART_CHECK(std::equal(ids.begin(), ids.end(), sequence.block(block).begin()),
                "block %lld: node %d has other tokens", static_cast<long long>(block), node);
    parent = node;
  }
}

// Reference counts are the numbers of table entries; a block has two owners only when both hold the
// same committed prefix, or when one sequence hands a slot from its first block to its last.
void PagedKvCache::check_references() const {
  std::vector<Owner> pages(static_cast<size_t>(pages_.count()));
  std::vector<Owner> slots(static_cast<size_t>(slots_.count()));
  for (const auto& [id, sequence] : sequences_) {
    const int32_t last_slot = sequence.blocks.empty() ? -1 : sequence.blocks.back().slot;
    for (size_t block = 0; block < sequence.blocks.size(); ++block) {
      const BlockPlace place = sequence.blocks[block];
      const auto index = static_cast<int64_t>(block);
      const size_t end = std::min(sequence.tokens.size(), (block + 1) * block_tokens);
      const bool sealed = sequence.committed >= (index + 1) * block_tokens;
      const bool last = block + 1 == sequence.blocks.size();
      const auto before = std::span(sequence.tokens).first(end);
      if (place.page >= 0) {
        Owner& owner = pages[static_cast<size_t>(place.page)];
        add_owner(owner, index, before);
        KVART_CHECK(sealed || pages_.references(place.page) == 1, "open page %d is shared",
                    place.page);
      }
      if (place.slot < 0) continue;
      Owner& owner = slots[static_cast<size_t>(place.slot)];
      if (place.slot == last_slot && !last && !sealed) {  // handed over: counted, owned by the last
        ++owner.references;
        KVART_CHECK(slots_.references(place.slot) == 2, "slot %d", place.slot);
        owner.block = static_cast<int64_t>(sequence.blocks.size()) - 1;
        owner.tokens = sequence.tokens;
        continue;
      }
      add_owner(owner, index, before);
      KVART_CHECK(sealed || slots_.references(place.slot) == owner.references,
                  "open slot %d is shared", place.slot);
    }
  }
  for (int32_t page = 0; page < pages_.count(); ++page) {
    KVART_CHECK(pages_.references(page) == pages[static_cast<size_t>(page)].references, "page %d",
                page);
  }
  for (int32_t slot = 0; slot < slots_.count(); ++slot) {
    KVART_CHECK(slots_.references(slot) == slots[static_cast<size_t>(slot)].references, "slot %d",
                slot);
  }
}

// The index names live blocks only, cached blocks are all in it, and a block that is not referenced
// has only descendants that are not, dropped before it: what eviction relies on.
void PagedKvCache::check_index() const {
  std::vector<int32_t> age(static_cast<size_t>(pages_.count() + slots_.count()), -1);
  int32_t next_age = 0;
  for (int32_t page = pages_.oldest_cached(); page >= 0; page = pages_.younger_cached(page)) {
    KVART_CHECK(index_.contains(node_of({page, -1})), "cached page %d is not indexed", page);
    age[static_cast<size_t>(node_of({page, -1}))] = next_age++;
  }
  for (int32_t slot = slots_.oldest_cached(); slot >= 0; slot = slots_.younger_cached(slot)) {
    KVART_CHECK(index_.contains(node_of({-1, slot})), "cached slot %d is not indexed", slot);
    age[static_cast<size_t>(node_of({-1, slot}))] = next_age++;
  }
  for (int32_t node = 0; node < static_cast<int32_t>(age.size()); ++node) {
    if (!index_.contains(node)) continue;
    const BlockPlace place = place_of(node);
    KVART_CHECK(place.page >= 0 ? !pages_.is_free(place.page) : !slots_.is_free(place.slot),
                "node %d is a free block", node);
    const int32_t parent = index_.parent(node);
    if (parent == PrefixIndex::none || age[static_cast<size_t>(parent)] < 0) continue;
    KVART_CHECK(age[static_cast<size_t>(node)] >= 0 &&
                    age[static_cast<size_t>(node)] < age[static_cast<size_t>(parent)],
                "node %d is younger than its parent %d", node, parent);
  }
}

}  // namespace kvart
