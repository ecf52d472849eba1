// Sequences made of copies, for measuring: as many bytes as if they had been computed, without the
// time that it takes.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "cache/paged_kv_cache.h"

namespace kvart {

namespace {

// Tokens that a sequence of `length` has in a block.
int64_t tokens_in(int64_t length, int64_t block) {
  return std::clamp<int64_t>(length - block * block_tokens, 0, block_tokens);
}

bool same_layout(const PageLayout& a, const PageLayout& b) {
  if (a.groups() != b.groups()) return false;
  for (int g = 0; g < a.groups(); ++g) {
    if (a.window(g) != b.window(g) || a.block_bytes(g) != b.block_bytes(g)) return false;
  }
  return true;
}

}  // namespace

Result<std::vector<PagedKvCache::Copy>> PagedKvCache::copies_for(KvCache& from, SequenceId like,
                                                                 size_t group,
                                                                 int64_t length) const {
  const auto g = static_cast<int>(group);
  const std::span<const BlockPlace> places = from.blocks(like, g);
  const int64_t known = from.committed(like);
  std::vector<const uint8_t*> pages;
  for (const BlockPlace place : places) {
    if (place.page >= 0) pages.push_back(from.page(g, place.page));
  }
  std::vector<Copy> copies;
  size_t next_page = 0;
  const int64_t first = groups_[group].first_visible(length / block_tokens);
  for (int64_t block = first; block * block_tokens < length; ++block) {
    Copy copy{block, tokens_in(length, block) == block_tokens && !is_sink(block)};
    if (copy.is_page && !pages.empty()) {
      copy.bytes = pages[next_page++ % pages.size()];
    } else if (!copy.is_page) {
      const int64_t twin = is_sink(block) ? block : known / block_tokens;
      const bool held = twin < static_cast<int64_t>(places.size()) &&
                        places[static_cast<size_t>(twin)].slot >= 0 &&
                        tokens_in(known, twin) >= tokens_in(length, block);
      if (held) copy.bytes = from.slot(g, places[static_cast<size_t>(twin)].slot);
    }
    if (copy.bytes == nullptr) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("a sequence of {} tokens can't be copied from one of {}: that holds "
                               "nothing for block {}",
                               length, known, block)};
    }
    copies.push_back(copy);
  }
  return copies;
}

Result<SequenceId> PagedKvCache::imitate(KvCache& from, SequenceId like, int64_t length) try {
  KVART_CHECK(length > 0, "%lld tokens", static_cast<long long>(length));
  KVART_CHECK(from.committed(like) == from.appended(like), "sequence %d has uncommitted tokens",
              like);
  KVART_CHECK(from.sink_blocks() == sink_blocks() &&
                  same_layout(from.page_layout(), page_layout_) &&
                  same_layout(from.slot_layout(), slot_layout_),
              "sequence %d is of another layout", like);
  std::vector<std::vector<Copy>> copies;
  for (size_t g = 0; g < groups_.size(); ++g) {
    auto of_group = copies_for(from, like, g, length);
    if (!of_group.ok()) return of_group.error();
    const auto pages = std::count_if(of_group->begin(), of_group->end(),
                                     [](const Copy& copy) { return copy.is_page; });
    rooms_[g] = {pages, static_cast<int64_t>(of_group->size()) - pages};
    copies.push_back(std::move(*of_group));
  }
  KVART_RETURN_IF_ERROR(check_room());
  const std::span<const int32_t> known = from.tokens(like);
  Sequence sequence;
  sequence.tokens.resize(static_cast<size_t>(length));
  for (size_t i = 0; i < sequence.tokens.size(); ++i) sequence.tokens[i] = known[i % known.size()];
  sequence.committed = sequence.cached = length;
  sequence.rollback_floor = length / block_tokens * block_tokens;
  sequence.tables.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    sequence.tables[g].first = groups_[g].first_visible(length / block_tokens);
    sequence.tables[g].places.resize(
        static_cast<size_t>((length + block_tokens - 1) / block_tokens));
  }
  const SequenceId id = add_sequence(std::move(sequence));
  // Nothing below needs memory.
  make_room();
  for (size_t g = 0; g < groups_.size(); ++g) {
    BlockGroup& group = groups_[g];
    for (const Copy& copy : copies[g]) {
      BlockPlace& place = get(id).tables[g].places[static_cast<size_t>(copy.block)];
      BlockPool& pool = copy.is_page ? group.pages : group.slots;
      const int32_t block = pool.take();
      (copy.is_page ? place.page : place.slot) = block;
      pool.memory().copy(pool.data(block), copy.bytes, pool.block_bytes());
    }
  }
  return id;
} catch (const std::bad_alloc&) {
  return no_memory();
}

}  // namespace kvart
