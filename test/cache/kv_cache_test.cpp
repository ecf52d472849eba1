// KvCache: what a step gets, what can be rolled back, what is shared, what is refused.
#include "cache/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"

namespace kvart {
namespace {

using ::testing::HasSubstr;

// Reserves, lets the writer play attention, does not commit.
void step(KvCache& cache, SequenceId id, const std::vector<int32_t>& tokens,
          Durability durability) {
  const int64_t first = cache.appended(id);
  ASSERT_TRUE(cache.reserve(id, tokens, durability).ok());
  Writer(&cache).write(id, first);
  cache.check_integrity();
}

TEST(KvCacheStep, AStepThatStaysInABlockHasASlotAndNoPage) {
  auto cache = make_cache({});
  const SequenceId id = *cache->start({}, "");
  step(*cache, id, text_tokens(1, 63), Durability::final);
  ASSERT_EQ(cache->blocks(id, 0).size(), 1u);
  EXPECT_EQ(cache->blocks(id, 0)[0].page, -1);
  EXPECT_GE(cache->blocks(id, 0)[0].slot, 0);
}

TEST(KvCacheStep, BlocksFilledWhollyInAStepHavePagesAndNoSlots) {
  auto cache = make_cache({});
  const SequenceId id = *cache->start({}, "");
  step(*cache, id, text_tokens(1, 3 * 64 + 1), Durability::final);
  ASSERT_EQ(cache->blocks(id, 0).size(), 4u);
  for (size_t block = 0; block < 3; ++block) {
    EXPECT_GE(cache->blocks(id, 0)[block].page, 0);
    EXPECT_EQ(cache->blocks(id, 0)[block].slot, -1);
  }
  EXPECT_EQ(cache->blocks(id, 0)[3].page, -1);
  EXPECT_GE(cache->blocks(id, 0)[3].slot, 0);
}

TEST(KvCacheStep, TheOpenBlocksSlotGoesToTheStepsLastBlock) {
  auto cache = make_cache({.slots = 1});  // no second slot could be had
  const SequenceId id = *cache->start({}, "");
  ASSERT_TRUE(append(*cache, id, text_tokens(1, 10)).ok());
  const int32_t slot = cache->blocks(id, 0)[0].slot;
  step(*cache, id, text_tokens(2, 54 + 64 + 5), Durability::final);
  ASSERT_EQ(cache->blocks(id, 0).size(), 3u);
  EXPECT_GE(cache->blocks(id, 0)[0].page, 0);
  EXPECT_EQ(cache->blocks(id, 0)[0].slot, slot);
  EXPECT_EQ(cache->blocks(id, 0)[1].slot, -1);
  EXPECT_EQ(cache->blocks(id, 0)[2].page, -1);
  EXPECT_EQ(cache->blocks(id, 0)[2].slot, slot);
  cache->commit(id, cache->appended(id));
  cache->check_integrity();
  EXPECT_EQ(cache->blocks(id, 0)[0].slot, -1);
  EXPECT_EQ(cache->blocks(id, 0)[2].slot, slot);
  Writer(cache.get()).verify(id);
}

TEST(KvCacheStep, SinkBlocksHaveSlotsForGood) {
  auto cache = make_cache({.sinks = 2});
  const SequenceId id = *cache->start({}, "");
  ASSERT_TRUE(append(*cache, id, text_tokens(1, 10)).ok());
  step(*cache, id, text_tokens(2, 64 * 4), Durability::final);
  for (int pass = 0; pass < 2; ++pass) {
    const auto places = cache->blocks(id, 0);
    ASSERT_EQ(places.size(), 5u);
    for (size_t block = 0; block < 5; ++block) {
      EXPECT_EQ(places[block].page >= 0, block == 2 || block == 3) << block;
      EXPECT_EQ(places[block].slot >= 0, block < 2 || block == 4) << block;
    }
    EXPECT_NE(places[4].slot, places[0].slot);
    cache->commit(id, cache->appended(id));
    cache->check_integrity();
  }
  Writer(cache.get()).verify(id);
}

TEST(KvCacheStep, SpeculativeBlocksHaveSlotsOfTheirOwnUntilTheyAreCommitted) {
  auto cache = make_cache({});
  const SequenceId id = *cache->start({}, "");
  ASSERT_TRUE(append(*cache, id, text_tokens(1, 60)).ok());
  step(*cache, id, text_tokens(2, 100), Durability::speculative);
  std::set<int32_t> slots;
  for (const BlockPlace place : cache->blocks(id, 0)) slots.insert(place.slot);
  EXPECT_EQ(slots.size(), 3u);
  EXPECT_FALSE(slots.contains(-1));
  EXPECT_GE(cache->blocks(id, 0)[0].page, 0);
  EXPECT_GE(cache->blocks(id, 0)[1].page, 0);
  EXPECT_EQ(cache->stats().slots_referenced, 3);
  cache->commit(id, 128);
  cache->check_integrity();
  EXPECT_EQ(cache->stats().slots_referenced, 1);
}

TEST(KvCacheStep, EverySequenceFitsItsPlanInAnyChunks) {
  for (int sinks = 0; sinks <= 3; ++sinks) {
    for (const int64_t context : {1, 63, 64, 65, 128, 191, 192, 193, 500, 640}) {
      for (const int64_t chunk : {1, 7, 63, 64, 65, 130, 1000}) {
        CacheConfig config = small_config({.sinks = sinks});
        config.plan = *plan_memory({config.shape, config.policy, context, 1, 0});
        auto cache = KvCache::create(config);
        ASSERT_TRUE(cache.ok());
        const SequenceId id = prefill(**cache, text_tokens(1, context), "", chunk);
        ASSERT_EQ((*cache)->committed(id), context) << sinks << " " << chunk;
        (*cache)->check_integrity();
        Writer(cache->get()).verify(id);
      }
    }
  }
}

TEST(KvCacheTruncate, SpeculativeTokensRollBackToAnyPointAfterTheCommit) {
  for (int sinks = 0; sinks <= 2; ++sinks) {
    for (const int64_t start : {0, 1, 60, 64, 100, 128, 190}) {
      for (int64_t length = start / 64 * 64; length <= start + 150; ++length) {
        auto cache = make_cache({.sinks = sinks});
        const SequenceId id = prefill(*cache, text_tokens(1, start), "");
        step(*cache, id, text_tokens(2, 70), Durability::speculative);
        step(*cache, id, text_tokens(3, 80), Durability::speculative);
        ASSERT_TRUE(cache->truncate(id, length).ok());
        cache->check_integrity();
        ASSERT_EQ(cache->appended(id), length);
        ASSERT_EQ(cache->committed(id), std::min(start, length));
        Writer(cache.get()).verify(id);
        cache->commit(id, length);
        ASSERT_TRUE(append(*cache, id, text_tokens(4, 70)).ok());
        cache->check_integrity();
        Writer(cache.get()).verify(id);
      }
    }
  }
}

TEST(KvCacheTruncate, SealedTokensAreRefusedAndNothingChanges) {
  auto cache = make_cache({});
  const SequenceId id = prefill(*cache, text_tokens(1, 200), "");
  for (const int64_t length : {int64_t{-1}, int64_t{0}, int64_t{64}, int64_t{191}, int64_t{201},
                               std::numeric_limits<int64_t>::min()}) {
    const Status status = cache->truncate(id, length);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(status.error().message, HasSubstr(std::to_string(length)));
    EXPECT_EQ(cache->appended(id), 200);
  }
  EXPECT_TRUE(cache->truncate(id, 195).ok());  // the open block
  EXPECT_EQ(cache->committed(id), 195);
  EXPECT_TRUE(cache->truncate(id, 192).ok());
  EXPECT_EQ(cache->blocks(id, 0).size(), 3u);
  EXPECT_FALSE(cache->truncate(id, 191).ok());
  cache->check_integrity();
}

TEST(KvCacheTruncate, ABlockThatWasJustSealedCanNotBeOpenedAgain) {
  auto cache = make_cache({});
  const SequenceId id = prefill(*cache, text_tokens(1, 128), "");
  EXPECT_FALSE(cache->truncate(id, 127).ok());
  EXPECT_FALSE(cache->truncate(id, 64).ok());
  EXPECT_TRUE(cache->truncate(id, 128).ok());
}

TEST(KvCacheTruncate, FinalTokensRollBackInsideTheLastBlockOnly) {
  auto cache = make_cache({});
  const SequenceId id = prefill(*cache, text_tokens(1, 70), "");
  step(*cache, id, text_tokens(2, 100), Durability::final);  // 170: blocks 1 and 2
  EXPECT_FALSE(cache->truncate(id, 127).ok());               // block 1's slot is block 2's now
  EXPECT_FALSE(cache->truncate(id, 70).ok());
  EXPECT_TRUE(cache->truncate(id, 150).ok());
  Writer(cache.get()).verify(id);
  EXPECT_TRUE(cache->truncate(id, 128).ok());
  cache->check_integrity();
  EXPECT_EQ(cache->blocks(id, 0)[1].slot, -1);  // overwritten by block 2's rows, so given back
  EXPECT_GE(cache->blocks(id, 0)[1].page, 0);
  EXPECT_FALSE(cache->truncate(id, 127).ok());
  cache->commit(id, 128);
  cache->check_integrity();
  Writer(cache.get()).verify(id);
}

TEST(KvCacheTruncate, ABlockWithoutASlotRollsBackAsAWhole) {
  auto cache = make_cache({});
  const SequenceId id = *cache->start({}, "");
  step(*cache, id, text_tokens(2, 128), Durability::final);
  EXPECT_FALSE(cache->truncate(id, 127).ok());
  EXPECT_FALSE(cache->truncate(id, 65).ok());
  EXPECT_TRUE(cache->truncate(id, 64).ok());
  cache->check_integrity();
  EXPECT_EQ(cache->stats().pages_referenced, 1);
}

TEST(KvCachePrefix, ASecondPromptTakesTheWholeBlocksOfTheFirst) {
  for (int sinks = 0; sinks <= 3; ++sinks) {
    for (int64_t length : {1, 64, 65, 128, 129, 300, 320}) {
      auto cache = make_cache({.sinks = sinks});
      const auto tokens = text_tokens(1, length);
      const SequenceId first = prefill(*cache, tokens, "");
      const SequenceId second = *cache->start(tokens, "");
      // The last token is always left to compute.
      EXPECT_EQ(cache->cached_tokens(second), (length - 1) / 64 * 64);
      EXPECT_EQ(cache->committed(second), cache->cached_tokens(second));
      cache->check_integrity();
      for (size_t block = 0; block < cache->blocks(second, 0).size(); ++block) {
        EXPECT_EQ(cache->blocks(second, 0)[block].page, cache->blocks(first, 0)[block].page);
        EXPECT_EQ(cache->blocks(second, 0)[block].slot, cache->blocks(first, 0)[block].slot);
      }
      Writer(cache.get()).verify(second);
      cache->release(first);
      cache->check_integrity();
      Writer(cache.get()).verify(second);
    }
  }
}

TEST(KvCachePrefix, TheSamePromptTwoHundredTimes) {
  auto cache = make_cache({.sinks = 1});
  const auto tokens = text_tokens(1, 200);
  for (int i = 0; i < 200; ++i) {
    const SequenceId id = prefill(*cache, tokens, "");
    EXPECT_EQ(cache->cached_tokens(id), i == 0 ? 0 : 192);
    Writer(cache.get()).verify(id);
    cache->release(id);
    cache->check_integrity();
  }
  const CacheStats stats = cache->stats();
  EXPECT_EQ(stats.prefix_queries_tokens, 200 * 200);
  EXPECT_EQ(stats.prefix_hits_tokens, 199 * 192);
  EXPECT_EQ(stats.evictions, 0);
  EXPECT_EQ(stats.pages_cached, 2);
  EXPECT_EQ(stats.slots_cached, 1);
}

TEST(KvCachePrefix, SaltsKeepUsersApart) {
  auto cache = make_cache({});
  const auto tokens = text_tokens(1, 200);
  prefill(*cache, tokens, "alice");
  EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "bob")), 0);
  EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "")), 0);
  EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "alice")), 192);
}

TEST(KvCachePrefix, CollidingKeysNeverServeAnotherPromptsBlocks) {
  for (const int key_bits : {0, 16}) {
    auto cache = make_cache({.pages = 2300, .slots = 8, .key_bits = key_bits});
    for (uint64_t prompt = 0; prompt < 1024; ++prompt) {
      const SequenceId id = prefill(*cache, text_tokens(prompt, 130), "");
      EXPECT_EQ(cache->cached_tokens(id), 0);
      cache->release(id);
    }
    cache->check_integrity();
    for (uint64_t prompt = 0; prompt < 1024; ++prompt) {
      const SequenceId id = *cache->start(text_tokens(prompt, 130), "");
      EXPECT_EQ(cache->cached_tokens(id), 128);
      Writer(cache.get()).verify(id);
      cache->release(id);
    }
  }
}

TEST(KvCachePrefix, APromptComputedTwiceAtTheSameTimeIsKeptOnce) {
  for (int sinks = 0; sinks <= 1; ++sinks) {
    auto cache = make_cache({.sinks = sinks});
    const auto tokens = text_tokens(1, 150);
    const SequenceId a = *cache->start(tokens, "");
    const SequenceId b = *cache->start(tokens, "");
    step(*cache, a, tokens, Durability::final);
    step(*cache, b, tokens, Durability::final);
    cache->commit(a, 150);
    cache->commit(b, 150);
    cache->check_integrity();
    for (size_t block = 0; block < 2; ++block) {
      EXPECT_EQ(cache->blocks(a, 0)[block].page, cache->blocks(b, 0)[block].page);
    }
    EXPECT_NE(cache->blocks(a, 0)[2].slot, cache->blocks(b, 0)[2].slot);
    EXPECT_EQ(cache->stats().pages_referenced, 2 - sinks);
    Writer(cache.get()).verify(b);
  }
}

TEST(KvCachePrefix, NothingIsSharedWhenItIsOff) {
  auto cache = make_cache({.prefix_caching = false});
  const auto tokens = text_tokens(1, 200);
  const SequenceId first = prefill(*cache, tokens, "");
  const SequenceId second = prefill(*cache, tokens, "");
  EXPECT_EQ(cache->cached_tokens(second), 0);
  const SequenceId copy = *cache->fork(second);
  cache->reset_prefix_cache();
  cache->check_integrity();
  for (const SequenceId id : {first, second, copy}) cache->release(id);
  cache->check_integrity();
  EXPECT_EQ(cache->stats().pages_free, cache->stats().pages_total);
  EXPECT_EQ(cache->stats().slots_free, cache->stats().slots_total);
  EXPECT_EQ(cache->stats().prefix_queries_tokens, 0);
}

TEST(KvCachePrefix, PoisonedSequencesLeaveNothingBehind) {
  auto cache = make_cache({});
  auto tokens = text_tokens(1, 300);
  const SequenceId id = *cache->start(tokens, "");
  ASSERT_TRUE(append(*cache, id, std::span(tokens).first(130)).ok());
  cache->poison(id);
  ASSERT_TRUE(append(*cache, id, std::span(tokens).subspan(130)).ok());
  cache->check_integrity();
  const SequenceId copy = *cache->fork(id);
  cache->check_integrity();
  EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "")), 128);  // what was in the index before
  cache->release(id);
  ASSERT_TRUE(append(*cache, copy, text_tokens(2, 100)).ok());
  cache->release(copy);
  cache->check_integrity();
  EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "")), 128);
}

TEST(KvCachePrefix, PoisonBetweenReserveAndCommit) {
  auto cache = make_cache({});
  const auto tokens = text_tokens(1, 300);
  const SequenceId id = *cache->start(tokens, "");
  step(*cache, id, tokens, Durability::final);
  cache->poison(id);
  cache->release(id);
  cache->check_integrity();
  EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "")), 0);
  EXPECT_EQ(cache->stats().pages_cached, 0);
}

TEST(KvCachePrefix, AResetWhileRequestsRun) {
  for (int sinks = 0; sinks <= 1; ++sinks) {
    auto cache = make_cache({.sinks = sinks});
    const auto tokens = text_tokens(1, 200);
    cache->release(prefill(*cache, text_tokens(2, 200), ""));
    const SequenceId running = *cache->start(tokens, "");
    ASSERT_TRUE(append(*cache, running, std::span(tokens).first(100)).ok());
    cache->reset_prefix_cache();
    cache->check_integrity();
    EXPECT_EQ(cache->stats().pages_cached + cache->stats().slots_cached, 0);
    ASSERT_TRUE(append(*cache, running, std::span(tokens).subspan(100)).ok());
    cache->check_integrity();
    Writer(cache.get()).verify(running);
    for (const uint64_t text : {1, 2}) {
      EXPECT_EQ(cache->cached_tokens(*cache->start(text_tokens(text, 200), "")), 0);
    }
    cache->release(running);
    EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "")), 0);
    cache->release(prefill(*cache, tokens, ""));  // prompts after the reset are found again
    EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "")), 192);
    cache->check_integrity();
  }
}

TEST(KvCachePrefix, ACacheMadeAnewIsEmpty) {
  const auto tokens = text_tokens(1, 200);
  for (int round = 0; round < 2; ++round) {
    auto cache = make_cache({});
    EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "")), 0);
    prefill(*cache, tokens, "");
  }
}

TEST(KvCacheFork, CopiesTheOpenBlockAndSharesTheOthers) {
  for (int sinks = 0; sinks <= 2; ++sinks) {
    for (const int64_t length : {0, 1, 63, 64, 65, 100, 127, 128, 129, 200}) {
      auto cache = make_cache({.pages = 32, .slots = 12, .sinks = sinks});
      const SequenceId parent = prefill(*cache, text_tokens(1, length), "");
      std::vector<SequenceId> all = {parent};
      for (int n = 0; n < 3; ++n) {
        const Result<SequenceId> child = cache->fork(parent);
        ASSERT_TRUE(child.ok());
        all.push_back(*child);
      }
      cache->check_integrity();
      for (int round = 0; round < 3; ++round) {  // each goes its own way, in turns
        for (size_t i = 0; i < all.size(); ++i) {
          ASSERT_TRUE(append(*cache, all[i], text_tokens(10 + i, 1 + round * 40)).ok());
          cache->check_integrity();
          for (const SequenceId id : all) Writer(cache.get()).verify(id);
        }
      }
      for (const SequenceId id : all) cache->release(id);
      cache->check_integrity();
      EXPECT_EQ(cache->stats().pages_referenced + cache->stats().slots_referenced, 0);
    }
  }
}

TEST(KvCacheFork, FailsWholeWhenNoSlotIsLeft) {
  auto cache = make_cache({.slots = 1});
  const SequenceId id = prefill(*cache, text_tokens(1, 100), "");
  const Result<SequenceId> child = cache->fork(id);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code, ErrorCode::out_of_memory);
  cache->check_integrity();
  EXPECT_EQ(cache->stats().pages_referenced, 1);
  const SequenceId whole = prefill(*cache, text_tokens(1, 64), "");
  EXPECT_TRUE(cache->fork(whole).ok());  // no open block, no slot
  cache->check_integrity();
}

}  // namespace
}  // namespace kvart
