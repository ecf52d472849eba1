// Sink blocks whose slots are needed move to pages: short prompts are found again as long as pages
// are free, with the same bytes, and what was used last is kept the longest wherever it lies.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/cache_fixture.h"

namespace kvart {
namespace {

constexpr int64_t short_tokens = 70;   // a block and a bit
constexpr int64_t pages_per_slot = 4;  // of int4 at head_dim 16

// The blocks of the text are in the cache, and nobody refers to them.
void leave(KvCache& cache, const std::vector<int32_t>& tokens) {
  cache.release(prefill(cache, tokens, ""));
  cache.check_integrity();
}

// How much of the text is found again, with the right bytes.
int64_t found(KvCache& cache, const std::vector<int32_t>& tokens) {
  const Result<SequenceId> id = cache.start(tokens, "");
  EXPECT_TRUE(id.ok());
  const Result<int64_t> length = cache.restore(*id, tokens);
  EXPECT_TRUE(length.ok());
  EXPECT_EQ(*length, cache.committed(*id));
  EXPECT_EQ(*length, cache.cached_tokens(*id));
  cache.check_integrity();
  Writer(&cache).verify(*id);
  cache.release(*id);
  cache.check_integrity();
  return *length;
}

int64_t found_short(KvCache& cache, uint64_t text) {
  return found(cache, text_tokens(text, short_tokens));
}

TEST(KvCacheParked, ShortPromptsAreKeptAsLongAsPagesAreFree) {
  auto cache = make_cache({.pages = 10 * pages_per_slot, .slots = 4, .sinks = 1});
  for (uint64_t text = 1; text <= 13; ++text) leave(*cache, text_tokens(text, short_tokens));
  EXPECT_EQ(cache->stats().parked_slots, 10);
  EXPECT_EQ(cache->stats().slots_cached, 3);
  EXPECT_EQ(cache->stats().evictions, 0);
  EXPECT_EQ(cache->stats().pages_free, 0);
  EXPECT_EQ(cache->stats().pages_cached, cache->stats().pages_total);
  const int64_t hits = cache->stats().prefix_hits_tokens;
  for (uint64_t text = 1; text <= 13; ++text) EXPECT_EQ(found_short(*cache, text), 64) << text;
  EXPECT_EQ(cache->stats().prefix_hits_tokens, hits + 13 * 64);
}

TEST(KvCacheParked, TheOldestGivesWayFirst) {
  auto cache = make_cache({.pages = 10 * pages_per_slot, .slots = 4, .sinks = 1});
  for (uint64_t text = 1; text <= 13; ++text) leave(*cache, text_tokens(text, short_tokens));
  EXPECT_EQ(found_short(*cache, 1), 64);  // 2 is the oldest now
  leave(*cache, text_tokens(14, short_tokens));
  EXPECT_EQ(cache->stats().evictions, 1);
  EXPECT_EQ(found_short(*cache, 2), 0);
  EXPECT_EQ(found_short(*cache, 1), 64);
  for (uint64_t text = 3; text <= 14; ++text) EXPECT_EQ(found_short(*cache, text), 64) << text;
}

// A long prompt's pages are as old as the prompt: its end goes for a younger slot, its beginning is
// kept; and a prompt that is younger than the slots loses nothing to them.
TEST(KvCacheParked, PagesGiveWayToYoungerSlotsOnly) {
  auto cache = make_cache({.pages = 12, .slots = 2, .sinks = 1});
  const std::vector<int32_t> longer = text_tokens(1, 64 * 7 + 1);
  leave(*cache, longer);
  leave(*cache, text_tokens(2, short_tokens));  // the long one's first block is parked
  EXPECT_EQ(cache->stats().parked_slots, 1);
  EXPECT_EQ(cache->stats().pages_free, 2);
  leave(*cache, text_tokens(3, short_tokens));  // 2 is parked: two pages are missing
  EXPECT_EQ(cache->stats().evictions, 2);
  EXPECT_EQ(found_short(*cache, 2), 64);
  EXPECT_EQ(found(*cache, longer), 64 * 5);
  // All that is in pages is younger than the slot of 2 now, or needed: it is not parked.
  leave(*cache, text_tokens(4, short_tokens));
  EXPECT_EQ(found(*cache, longer), 64 * 5);
}

// What runs needs the pages: parked blocks are no room that is taken.
TEST(KvCacheParked, RunningSequencesTakeThePages) {
  auto cache = make_cache({.pages = 8, .slots = 3, .sinks = 1});
  for (uint64_t text = 1; text <= 4; ++text) leave(*cache, text_tokens(text, short_tokens));
  EXPECT_EQ(cache->stats().parked_slots, 2);
  const std::vector<int32_t> all = text_tokens(9, 64 * 9 + 1);
  EXPECT_TRUE(cache->can_start(all, "", static_cast<int64_t>(all.size()), 1024));
  const SequenceId id = prefill(*cache, all, "");
  cache->check_integrity();
  EXPECT_EQ(cache->stats().parked_slots, 0);
  EXPECT_EQ(cache->stats().pages_referenced, 8);
  Writer(cache.get()).verify(id);
  EXPECT_EQ(found_short(*cache, 4), 64);  // the youngest still has its slot
}

// What comes back isn't evicted by its own coming back, though it is the oldest of all.
TEST(KvCacheParked, SeveralSinksComeBackTogether) {
  auto cache = make_cache({.pages = 4 * pages_per_slot, .slots = 3, .sinks = 2});
  for (uint64_t text = 1; text <= 3; ++text) leave(*cache, text_tokens(text, 64 * 2 + 1));
  EXPECT_EQ(cache->stats().parked_slots, 4);
  EXPECT_EQ(cache->stats().pages_free, 0);
  EXPECT_EQ(found(*cache, text_tokens(1, 64 * 2 + 1)), 64 * 2);
  EXPECT_EQ(found(*cache, text_tokens(3, 64 * 2 + 1)), 64 * 2);
}

TEST(KvCacheParked, EveryFormatAndWindowComesBack) {
  for (const FormatInfo* format : formats()) {
    const std::string name(format->name);
    for (const int sinks : {1, 3}) {
      for (const bool full : {true, false}) {
        SCOPED_TRACE(name + " sinks " + std::to_string(sinks) + (full ? "" : " without full"));
        auto cache = make_cache({.pages = 60,
                                 .slots = sinks + 1,
                                 .sinks = sinks,
                                 .formats = "k=" + name + ",v=" + name,
                                 .windows = {{150, 60, sinks + 1}},
                                 .full = full});
        const std::vector<int32_t> prompt = text_tokens(1, 64 * 3 + 7);
        leave(*cache, prompt);
        leave(*cache, text_tokens(2, 64 * 3 + 7));
        EXPECT_GT(cache->stats().parked_slots, 0);
        const Result<SequenceId> id = cache->start(prompt, "");
        EXPECT_EQ(cache->cached_tokens(*id), 0);
        cache->release(*id);
        EXPECT_EQ(found(*cache, prompt), 64 * 3);
        EXPECT_EQ(cache->stats().evictions, 0);
      }
    }
  }
}

// Computed again, not brought back, it is at one place only; and a reset forgets both.
TEST(KvCacheParked, ComputedAgainItsPagesAreFree) {
  auto cache = make_cache({.pages = 16, .slots = 2, .sinks = 1});
  const std::vector<int32_t> prompt = text_tokens(1, 64 * 3 + 1);
  leave(*cache, prompt);
  leave(*cache, text_tokens(2, short_tokens));
  EXPECT_EQ(cache->stats().parked_slots, 1);
  const SequenceId id = prefill(*cache, prompt, "");
  cache->check_integrity();
  EXPECT_EQ(cache->stats().parked_slots, 1);  // the other one
  EXPECT_EQ(cache->stats().pages_referenced, 2);
  cache->release(id);
  EXPECT_EQ(found_short(*cache, 2), 64);
  cache->reset_prefix_cache();
  cache->check_integrity();
  EXPECT_EQ(cache->stats().parked_slots, 0);
  EXPECT_EQ(cache->stats().pages_free, 16);
  EXPECT_EQ(found(*cache, prompt), 0);
}

// Open blocks alone have slots, so there is nothing to park.
TEST(KvCacheParked, WithoutSinksNothingIsParked) {
  auto cache = make_cache({.pages = 16, .slots = 2});
  for (uint64_t text = 1; text <= 8; ++text) leave(*cache, text_tokens(text, short_tokens));
  EXPECT_EQ(cache->stats().parked_slots, 0);
  EXPECT_EQ(found_short(*cache, 1), 64);
}

}  // namespace
}  // namespace kvart
