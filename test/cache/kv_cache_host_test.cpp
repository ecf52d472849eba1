// KvCache with host memory: blocks that were evicted come back with the same bytes, of every
// format, window and number of sinks; what is damaged there, belongs to others or was reset does
// not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "cache/paged_kv_cache.h"

namespace kvart {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t plenty = 16 << 20;

// The blocks of `tokens` are in the cache, and nobody refers to them.
void park(KvCache& cache, const std::vector<int32_t>& tokens, std::string_view salt = "") {
  cache.release(prefill(cache, tokens, salt));
}

// Every block that nobody refers to gives way to those of another text.
void push_out(KvCache& cache, uint64_t text, int64_t blocks) {
  const int64_t evictions = cache.stats().evictions;
  park(cache, text_tokens(text, blocks * 64 + 1));
  EXPECT_GT(cache.stats().evictions, evictions);
  cache.check_integrity();
}

// Starts the text again: `here` tokens are in the cache, `restored` with those in host memory.
SequenceId start_again(KvCache& cache, const std::vector<int32_t>& tokens, int64_t here,
                       int64_t restored, std::string_view salt = "") {
  const Result<SequenceId> id = cache.start(tokens, salt);
  EXPECT_TRUE(id.ok());
  EXPECT_EQ(cache.cached_tokens(*id), here);
  const Result<int64_t> length = cache.restore(*id, tokens);
  EXPECT_TRUE(length.ok());
  EXPECT_EQ(*length, restored);
  EXPECT_EQ(cache.committed(*id), restored);
  EXPECT_EQ(cache.appended(*id), restored);
  EXPECT_EQ(cache.cached_tokens(*id), restored);
  cache.check_integrity();
  Writer(&cache).verify(*id);
  return *id;
}

// A sequence is given up, its memory taken by another one, and it goes on where it was.
void round_trip(const SmallCache& small) {
  auto cache = make_cache(small);
  const std::vector<int32_t> text = text_tokens(1, 64 * 7);
  const auto prompt = std::vector<int32_t>(text.begin(), text.begin() + 64 * 6 + 5);
  park(*cache, prompt);
  push_out(*cache, 2, 9);
  const SequenceId id = *cache->start(prompt, "");
  EXPECT_LT(cache->cached_tokens(id), 64 * 6);
  EXPECT_EQ(*cache->restore(id, prompt), 64 * 6);
  cache->check_integrity();
  EXPECT_GT(cache->stats().swapped_in_blocks, small.full ? 5 : 0);
  Writer(cache.get()).verify(id);
  while (cache->appended(id) < static_cast<int64_t>(text.size())) {
    const auto rest = std::span(text).subspan(static_cast<size_t>(cache->appended(id)));
    ASSERT_TRUE(append(*cache, id, rest.first(std::min<size_t>(rest.size(), 7))).ok());
    cache->check_integrity();
  }
  Writer(cache.get()).verify(id);
  // They are in the index as if computed: a second sequence finds them.
  const Result<SequenceId> twin = cache->start(text, "");
  EXPECT_EQ(cache->cached_tokens(*twin), 64 * 6);
  Writer(cache.get()).verify(*twin);
  EXPECT_EQ(cache->stats().damaged_host_blocks, 0);
}

TEST(KvCacheHost, EveryFormatComesBack) {
  for (const FormatInfo* format : formats()) {
    const std::string name(format->name);
    for (const int sinks : {0, 1, 3}) {
      SCOPED_TRACE(name + " sinks " + std::to_string(sinks));
      round_trip({.pages = 9,
                  .slots = sinks + 1,
                  .sinks = sinks,
                  .formats = "k=" + name + ",v=" + name,
                  .host_bytes = plenty});
      round_trip({.pages = 9,
                  .slots = sinks + 1,
                  .sinks = sinks,
                  .formats = "k=" + name + ",v=" + name,
                  .windows = {{64, 4, 6}, {150, 7, 6}},
                  .host_bytes = plenty});
      round_trip({.sinks = sinks,
                  .formats = "k=" + name + ",v=" + name,
                  .windows = {{100, 3, 4}},
                  .full = false,
                  .host_bytes = plenty});
      if (testing::Test::HasFailure()) return;
    }
  }
}

// The window of 64 is gone, all else is still here: only that comes back.
TEST(KvCacheHost, OnlyWhatIsSeenAndMissingComesBack) {
  auto cache =
      make_cache({.pages = 40, .slots = 20, .windows = {{64, 1, 20}}, .host_bytes = plenty});
  const std::vector<int32_t> prompt = text_tokens(1, 64 * 6 + 1);
  park(*cache, prompt);
  park(*cache, text_tokens(2, 64 * 6 + 1));
  EXPECT_EQ(cache->counts(0).pages_free, 40 - 12);
  start_again(*cache, prompt, 0, 64 * 6);
  EXPECT_EQ(cache->stats().swapped_in_blocks, 1);
}

TEST(KvCacheHost, AShorterPromptTakesWhatItSees) {
  auto cache = make_cache({.pages = 8, .slots = 4, .host_bytes = plenty});
  park(*cache, text_tokens(1, 64 * 6 + 1));
  push_out(*cache, 2, 8);
  // The last token is computed, so its block isn't brought back.
  start_again(*cache, text_tokens(1, 64 * 3), 0, 64 * 2);
  EXPECT_EQ(cache->stats().swapped_in_blocks, 2);
  start_again(*cache, text_tokens(1, 63), 0, 0);
}

// Blocks that others refer to stay, and as many come back as there is room for.
TEST(KvCacheHost, NobodyElseGivesWay) {
  auto cache = make_cache({.pages = 10, .slots = 4, .host_bytes = plenty});
  const std::vector<int32_t> prompt = text_tokens(1, 64 * 8 + 1);
  park(*cache, prompt);
  push_out(*cache, 2, 10);
  const SequenceId other = prefill(*cache, text_tokens(3, 64 * 5 + 1), "");
  const SequenceId id = start_again(*cache, prompt, 0, 64 * 5);
  Writer(cache.get()).verify(other);
  EXPECT_EQ(cache->counts(0).pages_referenced, 10);
  EXPECT_FALSE(cache->has_room(id, 64));
  cache->release(other);
  EXPECT_TRUE(cache->has_room(id, 64));
}

// What lies in host memory the longest is forgotten first: a prefix's end before its beginning.
TEST(KvCacheHost, TheOldestIsForgotten) {
  auto cache = make_cache({.pages = 8, .slots = 4, .host_bytes = 10 * 1152});
  const std::vector<int32_t> first = text_tokens(1, 64 * 8 + 1);
  park(*cache, first);
  push_out(*cache, 2, 8);
  EXPECT_EQ(cache->stats().host_blocks, 8);
  EXPECT_EQ(cache->stats().host_bytes_total, 10 * 1152);
  park(*cache, text_tokens(3, 64 * 4 + 1));  // sends 4 more there: 2 of the first text go
  EXPECT_EQ(cache->stats().host_blocks, 10);
  start_again(*cache, first, 0, 64 * 6);
}

// Host memory that is full, all of it on its way back: what gives way to it is forgotten.
TEST(KvCacheHost, AFullStoreBringsBackAllTheSame) {
  auto cache = make_cache({.pages = 8, .slots = 4, .host_bytes = 8 * 1152});
  const std::vector<int32_t> first = text_tokens(1, 64 * 8 + 1);
  const std::vector<int32_t> second = text_tokens(2, 64 * 8 + 1);
  park(*cache, first);
  park(*cache, second);
  for (int round = 0; round < 4; ++round) {
    cache->release(start_again(*cache, first, round == 0 ? 0 : 64, 64 * 8));
    cache->release(start_again(*cache, second, 0, 64 * 7));
    if (testing::Test::HasFailure()) return;
  }
}

// One stored block after another is damaged.
void damage_each(const SmallCache& small, int32_t stored) {
  const std::vector<int32_t> prompt = text_tokens(1, 64 * 6 + 1);
  for (int32_t damaged = 0; damaged < stored; ++damaged) {
    SCOPED_TRACE("stored block " + std::to_string(damaged));
    auto cache = make_cache(small);
    park(*cache, prompt);
    push_out(*cache, 2, 9);
    const HostStore& host = *dynamic_cast<PagedKvCache&>(*cache).host();
    ASSERT_EQ(host.blocks(), stored);
    ASSERT_TRUE(host.contains(damaged));
    host.first_byte(damaged)[damaged * 100] ^= 0x10;
    const SequenceId id = *cache->start(prompt, "");
    ASSERT_EQ(cache->cached_tokens(id), 0);
    const Result<int64_t> length = cache->restore(id, prompt);
    ASSERT_TRUE(length.ok());
    cache->check_integrity();
    EXPECT_EQ(cache->stats().damaged_host_blocks, 1);
    // The last block was evicted first.
    EXPECT_EQ(*length, small.windows.empty() ? 64 * (5 - damaged) : 0);
    Writer(cache.get()).verify(id);
    // Computed again, it is as it was.
    const auto rest = std::span(prompt).subspan(static_cast<size_t>(*length));
    ASSERT_TRUE(append(*cache, id, rest).ok());
    cache->check_integrity();
    Writer(cache.get()).verify(id);
  }
}

TEST(KvCacheHost, DamagedBytesAreSeenAndNotUsed) {
  damage_each({.pages = 9, .slots = 2, .sinks = 1, .host_bytes = plenty}, 6);
  // The window sees three blocks of the prompt, and nothing is of use without them.
  damage_each({.pages = 9, .slots = 2, .sinks = 1, .windows = {{150, 7, 6}}, .host_bytes = plenty},
              9);
}

// With keys of no bits all blocks have the same one; still none is taken for another.
TEST(KvCacheHost, CollidingKeysAreToldApart) {
  for (const int bits : {0, 1}) {
    auto cache =
        make_cache({.pages = 6, .slots = 6, .sinks = 1, .key_bits = bits, .host_bytes = plenty});
    // Different first blocks, the same blocks behind them.
    std::vector<std::vector<int32_t>> texts;
    for (const uint64_t head : {1, 2, 3}) {
      texts.push_back(text_tokens(head, 64));
      const std::vector<int32_t> tail = text_tokens(9, 64 * 4 + 1);
      texts.back().insert(texts.back().end(), tail.begin(), tail.end());
    }
    for (const auto& text : texts) park(*cache, text);
    park(*cache, texts[0], "a salt");
    push_out(*cache, 4, 6);
    for (const auto& text : texts) {
      const Result<SequenceId> id = cache->start(text, "");
      const Result<int64_t> length = cache->restore(*id, text);
      ASSERT_TRUE(length.ok());
      EXPECT_EQ(*length, 64 * 5);
      Writer(cache.get()).verify(*id);
      cache->check_integrity();
      cache->release(*id);
    }
    const Result<SequenceId> salted = cache->start(texts[0], "a salt");
    EXPECT_EQ(*cache->restore(*salted, texts[0]), 64 * 5);
    cache->release(*salted);
    start_again(*cache, texts[1], 0, 0, "a salt");
    start_again(*cache, texts[1], 0, 0, "another salt");
  }
}

// Swapped out, brought back to other places, shared by a second sequence that goes on while the
// first one ends and everything that nobody refers to is evicted.
TEST(KvCacheHost, ASecondSequenceKeepsWhatTheFirstBroughtBack) {
  auto cache = make_cache({.pages = 8, .slots = 6, .sinks = 1, .host_bytes = plenty});
  const std::vector<int32_t> text = text_tokens(1, 64 * 6);
  const std::vector<int32_t> prompt(text.begin(), text.begin() + 64 * 4 + 3);
  const SequenceId before = prefill(*cache, prompt, "");
  const std::vector<BlockPlace> places(cache->blocks(before, 0).begin(),
                                       cache->blocks(before, 0).end());
  cache->release(before);
  push_out(*cache, 2, 9);
  const SequenceId first = start_again(*cache, prompt, 64, 64 * 4);  // the sink never left
  const SequenceId second = start_again(*cache, prompt, 64 * 4, 64 * 4);
  bool moved = false;
  for (size_t block = 0; block < 4; ++block) {
    const BlockPlace place = cache->blocks(first, 0)[block];
    EXPECT_EQ(place.page, cache->blocks(second, 0)[block].page);
    EXPECT_EQ(place.slot, cache->blocks(second, 0)[block].slot);
    moved = moved || place.page != places[block].page;
  }
  EXPECT_TRUE(moved);
  ASSERT_TRUE(append(*cache, first, std::span(prompt).subspan(64 * 4)).ok());
  cache->release(first);
  while (cache->committed(second) < static_cast<int64_t>(text.size())) {
    const auto at = static_cast<size_t>(cache->committed(second));
    ASSERT_TRUE(append(*cache, second, std::span(text).subspan(at, 16)).ok());
    if (at % 64 == 0) push_out(*cache, at + 10, 3);
    Writer(cache.get()).verify(second);
    cache->check_integrity();
  }
}

TEST(KvCacheHost, WhatIsResetOrPoisonedDoesNotComeBack) {
  auto cache = make_cache({.pages = 8, .slots = 4, .host_bytes = plenty});
  const std::vector<int32_t> prompt = text_tokens(1, 64 * 6 + 1);
  park(*cache, prompt);
  push_out(*cache, 2, 8);
  EXPECT_EQ(cache->stats().host_blocks, 6);
  cache->reset_prefix_cache();
  cache->check_integrity();
  EXPECT_EQ(cache->stats().host_blocks, 0);
  EXPECT_EQ(cache->stats().host_bytes_used, 0);
  cache->release(start_again(*cache, prompt, 0, 0));

  const SequenceId wrong = prefill(*cache, text_tokens(1, 64 * 2), "");
  ASSERT_TRUE(cache->reserve(wrong, text_tokens(3, 64 * 2), Durability::final).ok());
  Writer(cache.get()).write(wrong, 64 * 2);
  cache->poison(wrong);
  cache->commit(wrong, 64 * 4);
  const std::vector<int32_t> all(cache->tokens(wrong).begin(), cache->tokens(wrong).end());
  cache->release(wrong);
  push_out(*cache, 4, 8);
  std::vector<int32_t> longer = all;
  longer.push_back(1);
  start_again(*cache, longer, 0, 64 * 2);
}

// A sequence that was running at the reset is not shared any more, and takes nothing back.
TEST(KvCacheHost, AResetBetweenStartAndRestore) {
  auto cache = make_cache({.pages = 8, .slots = 4, .host_bytes = plenty});
  const std::vector<int32_t> prompt = text_tokens(1, 64 * 4 + 1);
  park(*cache, prompt);
  push_out(*cache, 2, 8);
  const Result<SequenceId> id = cache->start(prompt, "");
  cache->reset_prefix_cache();
  EXPECT_EQ(*cache->restore(*id, prompt), 0);
  cache->check_integrity();
}

// A block that is computed again, not brought back, is at one place only.
TEST(KvCacheHost, ComputedAgainItLeavesHostMemory) {
  auto cache = make_cache({.pages = 8, .slots = 2, .sinks = 1, .host_bytes = plenty});
  const std::vector<int32_t> prompt = text_tokens(1, 64 * 4 + 1);
  park(*cache, prompt);
  push_out(*cache, 2, 9);
  EXPECT_EQ(cache->stats().host_blocks, 4);
  const SequenceId id = prefill(*cache, prompt, "");
  cache->check_integrity();
  Writer(cache.get()).verify(id);
  EXPECT_EQ(cache->stats().swapped_in_blocks, 0);
}

// Many texts behind one sink block: its slot goes last, and takes what is behind it along.
TEST(KvCacheHost, ASinkBlockWithManyTextsBehindIt) {
  auto cache = make_cache({.pages = 28, .slots = 3, .sinks = 1, .host_bytes = plenty});
  std::vector<std::vector<int32_t>> texts;
  for (uint64_t tail = 0; tail < 9; ++tail) {
    texts.push_back(text_tokens(50, 64));
    const std::vector<int32_t> own = text_tokens(tail, 64 * 3 + 1);
    texts.back().insert(texts.back().end(), own.begin(), own.end());
    park(*cache, texts.back());
    cache->check_integrity();
  }
  for (uint64_t text = 20; text < 23; ++text) push_out(*cache, text, 4);
  for (const auto& text : texts) {
    const Result<SequenceId> id = cache->start(text, "");
    EXPECT_EQ(*cache->restore(*id, text), 64 * 4);
    Writer(cache.get()).verify(*id);
    cache->check_integrity();
    cache->release(*id);
  }
}

TEST(KvCacheHost, WhatCanNotBeSwappedIsRefusedAtTheStart) {
  CacheConfig config = small_config({.pages = 8, .slots = 4, .host_bytes = 4095});
  const auto small = KvCache::create(config);
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(small.error().message, AllOf(HasSubstr("4095"), HasSubstr("4096 bytes")));
  config = small_config({.pages = 8, .slots = 4, .prefix_caching = false, .host_bytes = plenty});
  const auto without = KvCache::create(config);
  ASSERT_FALSE(without.ok());
  EXPECT_THAT(without.error().message, HasSubstr("prefix caching"));
}

}  // namespace
}  // namespace kvart
