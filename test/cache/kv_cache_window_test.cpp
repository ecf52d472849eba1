// KvCache with windowed groups: what is dropped and when, what a hit needs, who is evicted, and
// that the planned memory is enough for any steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "cache/kv_cache.h"

namespace kvart {
namespace {

// The blocks of which the group holds anything.
std::vector<int64_t> held_blocks(const KvCache& cache, SequenceId id, int group) {
  std::vector<int64_t> held;
  const auto places = cache.blocks(id, group);
  for (size_t block = 0; block < places.size(); ++block) {
    if (places[block].page >= 0 || places[block].slot >= 0) {
      held.push_back(static_cast<int64_t>(block));
    }
  }
  return held;
}

using Blocks = std::vector<int64_t>;

TEST(KvCacheWindow, BlocksThatNoQuerySeesAreDroppedAtCommit) {
  // A query at 64 L sees the tokens from 64 L - 95 on: a part of block L - 2.
  auto cache = make_cache({.pages = 16, .slots = 4, .windows = {{96, 16, 4}}});
  const SequenceId id = *cache->start({}, "");
  const auto tokens = text_tokens(1, 64 * 8);
  for (int64_t block = 0; block < 8; ++block) {
    ASSERT_TRUE(append(*cache, id, std::span(tokens).subspan(block * 64, 63)).ok());
    EXPECT_EQ(held_blocks(*cache, id, 0).size(), static_cast<size_t>(block + 1));
    const Blocks all = {block - 2, block - 1, block};
    const Blocks seen(all.begin() + std::max<int64_t>(0, 2 - block), all.end());
    EXPECT_EQ(held_blocks(*cache, id, 1), seen) << block;
    ASSERT_TRUE(append(*cache, id, std::span(tokens).subspan(block * 64 + 63, 1)).ok());
    EXPECT_EQ(held_blocks(*cache, id, 1), Blocks(seen.begin() + (block >= 2 ? 1 : 0), seen.end()))
        << block;
    cache->check_integrity();
    Writer(cache.get()).verify(id);
  }
}

TEST(KvCacheWindow, WhatAStepPushesOutOfTheWindowHasNoPlace) {
  auto cache = make_cache({.pages = 16, .slots = 4, .windows = {{96, 3, 1}}});
  const SequenceId id = *cache->start({}, "");
  ASSERT_TRUE(append(*cache, id, text_tokens(1, 70)).ok());
  ASSERT_TRUE(cache->reserve(id, text_tokens(2, 64 * 7), Durability::final).ok());  // to 518
  cache->check_integrity();
  // The step's queries see blocks 0 and 1, the next step's blocks 6 and 7, and 8 is open.
  EXPECT_EQ(held_blocks(*cache, id, 1), (Blocks{0, 1, 6, 7, 8}));
  EXPECT_EQ(cache->blocks(id, 1)[1].page, -1);
  EXPECT_EQ(cache->blocks(id, 1)[1].slot, cache->blocks(id, 1)[8].slot);
  EXPECT_EQ(cache->counts(1).pages_referenced, 3);
  EXPECT_EQ(cache->stats().fullest_share, 1);  // the other group has free pages
  EXPECT_EQ(held_blocks(*cache, id, 0).size(), 9u);
  Writer(cache.get()).write(id, 70);
  cache->commit(id, 518);
  EXPECT_EQ(held_blocks(*cache, id, 1), (Blocks{6, 7, 8}));
  cache->check_integrity();
  Writer(cache.get()).verify(id);
}

TEST(KvCacheWindow, ASinkIsDroppedWhenItLeavesTheWindow) {
  auto cache = make_cache(
      {.pages = 16, .slots = 4, .sinks = 1, .prefix_caching = false, .windows = {{64, 4, 2}}});
  const SequenceId id = prefill(*cache, text_tokens(1, 64), "", 7);
  EXPECT_EQ(held_blocks(*cache, id, 1), (Blocks{0}));
  ASSERT_TRUE(append(*cache, id, text_tokens(2, 64)).ok());
  EXPECT_EQ(held_blocks(*cache, id, 1), (Blocks{1}));
  EXPECT_EQ(held_blocks(*cache, id, 0), (Blocks{0, 1}));
  EXPECT_EQ(cache->counts(1).slots_free, 2);
  cache->check_integrity();
}

TEST(KvCacheWindow, APartialCommitAndARollBackKeepWhatLaterQueriesSee) {
  for (const int window : {1, 2, 64, 65, 96, 200}) {
    for (const Durability durability : {Durability::final, Durability::speculative}) {
      for (int64_t start : {0, 60, 64, 130, 300}) {
        for (int64_t kept = 0; kept <= 150; kept += 3) {
          auto cache = make_cache({.pages = 16, .slots = 8, .windows = {{window, 12, 8}}});
          const SequenceId id = prefill(*cache, text_tokens(1, start), "");
          ASSERT_TRUE(cache->reserve(id, text_tokens(2, 150), durability).ok());
          Writer(cache.get()).write(id, start);
          cache->commit(id, start + kept / 2);
          cache->check_integrity();
          const bool truncated = cache->truncate(id, start + kept).ok();
          if (durability == Durability::speculative) {
            const int64_t floor = (start + kept / 2) / 64 * 64;
            ASSERT_EQ(truncated, start + kept >= floor);
          }
          cache->check_integrity();
          cache->commit(id, cache->appended(id));
          cache->check_integrity();
          const int64_t length = cache->committed(id);
          const int64_t oldest = std::max<int64_t>(0, length / 64 * 64 - window + 1) / 64;
          const Blocks held = held_blocks(*cache, id, 1);
          ASSERT_EQ(static_cast<int64_t>(held.size()), (length + 63) / 64 - oldest);
          ASSERT_TRUE(append(*cache, id, text_tokens(3, 70)).ok());
          Writer(cache.get()).verify(id);
        }
      }
    }
  }
}

TEST(KvCacheWindow, AHitNeedsOfAWindowedGroupOnlyWhatIsStillSeen) {
  for (const bool full : {true, false}) {
    auto cache = make_cache({.pages = 40, .slots = 6, .windows = {{96, 40, 6}}, .full = full});
    const int windowed = full ? 1 : 0;
    const auto tokens = text_tokens(1, 64 * 16 + 1);
    cache->release(prefill(*cache, tokens, "", 64 * 8));  // steps end after blocks 8 and 16
    EXPECT_EQ(cache->counts(windowed).pages_cached, 6);   // the three last of each step
    const SequenceId all = *cache->start(tokens, "");
    EXPECT_EQ(cache->cached_tokens(all), 64 * 16);
    EXPECT_EQ(held_blocks(*cache, all, windowed), (Blocks{14, 15}));
    cache->check_integrity();
    Writer(cache.get()).verify(all);
    // Text that parts after block 12: of its window nothing is there, of block 8's everything.
    auto other = tokens;
    other[64 * 12] ^= 1;
    const SequenceId part = *cache->start(other, "");
    EXPECT_EQ(cache->cached_tokens(part), 64 * 8);
    EXPECT_EQ(held_blocks(*cache, part, windowed), (Blocks{6, 7}));
    cache->check_integrity();
    Writer(cache.get()).verify(part);
    EXPECT_EQ(cache->stats().prefix_hits_tokens, 64 * 24);
  }
}

TEST(KvCacheWindow, BlocksComputedAgainFillTheGapsOfTheIndex) {
  auto cache = make_cache({.pages = 40, .slots = 6, .windows = {{96, 40, 6}}});
  const auto tokens = text_tokens(1, 64 * 8 + 1);
  cache->release(prefill(*cache, tokens, "", 1000));  // of the window: blocks 6 and 7
  auto beginning = tokens;
  beginning.resize(64 * 5 + 1);
  EXPECT_EQ(cache->cached_tokens(*cache->start(beginning, "")), 0);
  const SequenceId again = prefill(*cache, beginning, "", 32);
  EXPECT_EQ(cache->counts(0).pages_cached + cache->counts(0).pages_referenced, 8);
  EXPECT_EQ(cache->counts(1).pages_cached + cache->counts(1).pages_referenced, 7);
  cache->check_integrity();
  cache->release(again);
  for (int64_t blocks = 1; blocks <= 5; ++blocks) {
    auto prompt = tokens;
    prompt.resize(static_cast<size_t>(64 * blocks + 1));
    EXPECT_EQ(cache->cached_tokens(*cache->start(prompt, "")), 64 * blocks);
  }
  cache->check_integrity();
}

TEST(KvCacheWindow, WindowedBlocksAreEvictedInOrderOfAge) {
  auto cache = make_cache({.pages = 40, .slots = 6, .windows = {{96, 5, 6}}});
  const auto a = text_tokens(1, 64 * 4 + 1);
  const auto b = text_tokens(2, 64 * 4 + 1);
  cache->release(prefill(*cache, a, "", 1000));  // two blocks each
  cache->release(prefill(*cache, b, "", 1000));
  EXPECT_EQ(cache->counts(1).pages_cached, 4);
  cache->release(*cache->start(a, ""));  // the younger now
  cache->release(prefill(*cache, text_tokens(3, 64 * 2 + 1), "", 1000));
  cache->check_integrity();
  EXPECT_EQ(cache->stats().evictions, 1);
  EXPECT_EQ(cache->cached_tokens(*cache->start(b, "")), 0);
  EXPECT_EQ(cache->cached_tokens(*cache->start(a, "")), 64 * 4);
  EXPECT_EQ(cache->counts(0).pages_cached, 4 + 2);  // b's pages of the full layers stay
}

TEST(KvCacheWindow, ABlockEvictedFromTheFullGroupTakesTheOthersAlong) {
  auto cache = make_cache({.pages = 4, .slots = 6, .windows = {{96, 20, 6}}});
  cache->release(prefill(*cache, text_tokens(1, 64 * 4 + 1), "", 64));
  EXPECT_EQ(cache->counts(1).pages_cached, 4);
  const SequenceId id = prefill(*cache, text_tokens(2, 64 * 2 + 1), "", 64);
  cache->check_integrity();
  EXPECT_EQ(cache->counts(0).pages_cached, 2);
  EXPECT_EQ(cache->counts(1).pages_cached, 2);
  EXPECT_EQ(cache->stats().evictions, 4);
  EXPECT_EQ(cache->cached_tokens(*cache->start(text_tokens(1, 64 * 4 + 1), "")), 64 * 2);
  Writer(cache.get()).verify(id);
}

// Without a full group the index holds a chain for every planned sequence. Longer ones first cost
// what is cached, then their own place in the index, never an answer.
TEST(KvCacheWindow, ChainsLongerThanPlannedAreNotShared) {
  CacheConfig config = small_config({});
  config.shape.layers = {{1, 16, 64}};
  config.plan = *plan_memory({config.shape, config.policy, 64 * 8, 2, 0});
  config.poison_free_blocks = true;
  auto created = KvCache::create(config);
  KvCache& cache = **created;
  const auto hit = [&](uint64_t text, int64_t length) {
    const SequenceId id = *cache.start(text_tokens(text, length), "");
    const int64_t tokens = cache.cached_tokens(id);
    cache.release(id);
    return tokens;
  };
  cache.release(prefill(cache, text_tokens(1, 64 * 8), "", 64));
  EXPECT_EQ(hit(1, 64 * 8 + 1), 64 * 8);
  const SequenceId id = prefill(cache, text_tokens(2, 64 * 100), "", 64);
  cache.check_integrity();
  EXPECT_EQ(cache.committed(id), 64 * 100);
  Writer(&cache).verify(id);
  EXPECT_LT(hit(2, 64 * 100), 64 * 40);
  cache.release(id);
  cache.check_integrity();
  cache.release(prefill(cache, text_tokens(3, 64 * 8), "", 64));  // there is room again
  EXPECT_EQ(hit(3, 64 * 8 + 1), 64 * 8);
  cache.check_integrity();
}

TEST(KvCacheWindow, TheErrorNamesTheGroup) {
  auto cache = make_cache({.pages = 40, .slots = 6, .windows = {{96, 2, 6}}});
  const SequenceId id = *cache->start({}, "");
  const Status status = cache->reserve(id, text_tokens(1, 192), Durability::final);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(status.error().message.find("3 pages and 0 slots are needed for layers with a window "
                                        "of 96, 2 and 6 can be had"),
            std::string::npos)
      << status.error().message;
  EXPECT_EQ(cache->counts(0).pages_free, 40);
}

// Steps of random sizes of as many sequences as are planned, in exactly the planned memory: prompts
// that share beginnings, forks, ends and new starts. Nothing is ever refused.
class PlannedRun {
 public:
  PlannedRun(const std::vector<int>& windows, int sinks, int64_t context, int64_t sequences,
             int64_t step_tokens, uint64_t seed)
      : context_(context), sequences_(sequences), step_tokens_(step_tokens), random_(seed) {
    CacheConfig config;
    for (const int window : windows) config.shape.layers.push_back({1, 16, window});
    config.policy = policy_of("int4,sink=" + std::to_string(sinks));
    config.plan = *plan_memory({config.shape, config.policy, context, sequences, 0, step_tokens});
    auto created = KvCache::create(std::move(config));
    cache_ = std::move(*created);
  }

  void step() {
    while (static_cast<int64_t>(live_.size()) < sequences_) start();
    std::shuffle(live_.begin(), live_.end(), random_);
    int64_t left = step_tokens_;
    std::vector<SequenceId> stepped;
    for (const Live& live : live_) {
      const int64_t room = context_ - cache_->appended(live.id);
      const int64_t sizes[] = {1, 2, pick(1, 70), 66, pick(1, step_tokens_), step_tokens_};
      const int64_t count = std::min({room, left, sizes[pick(0, 5)]});
      if (count <= 0) continue;
      const auto tokens = std::span(live.text).subspan(
          static_cast<size_t>(cache_->appended(live.id)), static_cast<size_t>(count));
      const Status status = cache_->reserve(live.id, tokens, Durability::final);
      ASSERT_TRUE(status.ok()) << status.error().message;
      left -= count;
      stepped.push_back(live.id);
    }
    cache_->check_integrity();
    for (const SequenceId id : stepped) cache_->commit(id, cache_->appended(id));
    cache_->check_integrity();
    for (size_t i = live_.size(); i-- > 0;) {
      if (cache_->appended(live_[i].id) < context_ && pick(0, 15) != 0) continue;
      cache_->release(live_[i].id);
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

 private:
  struct Live {
    SequenceId id;
    std::vector<int32_t> text;
  };

  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  void start() {
    if (!live_.empty() && pick(0, 3) == 0) {
      const Live& parent =
          live_[static_cast<size_t>(pick(0, static_cast<int64_t>(live_.size()) - 1))];
      const Result<SequenceId> child = cache_->fork(parent.id);
      ASSERT_TRUE(child.ok()) << child.error().message;
      live_.push_back({*child, parent.text});
      return;
    }
    const std::vector<int32_t> text = random_text_with_common_start(
        context_, [this](int64_t low, int64_t high) { return pick(low, high); });
    const auto prompt = std::span(text).first(static_cast<size_t>(pick(0, context_)));
    live_.push_back({*cache_->start(prompt, ""), text});
  }

  int64_t context_;
  int64_t sequences_;
  int64_t step_tokens_;
  std::mt19937_64 random_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Live> live_;
};

TEST(KvCacheWindow, PlannedSequencesNeverRunOutOfMemory) {
  const std::vector<std::vector<int>> shapes = {{0, 96}, {64},     {0, 64, 200}, {1},  {0, 2},
                                                {63},    {65, 66}, {0, 130},     {512}};
  uint64_t seed = 0;
  for (const std::vector<int>& windows : shapes) {
    for (int sinks = 0; sinks <= 4; ++sinks) {
      for (const int64_t context : {65, 320, 900}) {
        for (const int64_t sequences : {1, 2, 5}) {
          for (const int64_t step_tokens : {1, 2, 66, 130, 512}) {
            PlannedRun run(windows, sinks, context, sequences, step_tokens, ++seed);
            for (int step = 0; step < 40; ++step) {
              run.step();
              ASSERT_FALSE(HasFatalFailure())
                  << "window " << windows.back() << " sinks " << sinks << " context " << context
                  << " sequences " << sequences << " steps of " << step_tokens;
            }
          }
        }
      }
    }
  }
}

// The plan holds no page that no step needs: a page less, and there is a step that is refused.
TEST(KvCacheWindow, AStepNeedsAllPagesOfThePlan) {
  for (const int window : {2, 64, 65, 66, 96, 200, 512}) {
    for (const int64_t step_tokens : {1, 64, 65, 128, 200, 512}) {
      CacheConfig config = small_config({});
      config.shape.layers = {{1, 16, window}};
      config.policy = policy_of("int8");
      config.plan = *plan_memory({config.shape, config.policy, 64 * 40, 1, 0, step_tokens});
      for (const int64_t missing : {0, 1}) {
        CacheConfig small = config;
        small.plan.groups[0].pages -= missing;
        small.plan.total_bytes -= missing * small.plan.groups[0].page_bytes;
        auto created = KvCache::create(small);
        KvCache& cache = **created;
        // Single tokens up to the last of a block, then that one and blocks to their ends.
        const SequenceId id = *cache.start({}, "");
        bool refused = false;
        for (int i = 0; i < 64 * 20 - 1 && !refused; ++i) {
          refused = !append(cache, id, text_tokens(static_cast<uint64_t>(i), 1)).ok();
        }
        const int64_t tokens = 1 + (step_tokens - 1) / 64 * 64;
        refused = refused || !cache.reserve(id, text_tokens(1, tokens), Durability::final).ok();
        ASSERT_EQ(refused, missing == 1) << window << " steps of " << step_tokens;
      }
    }
  }
}

}  // namespace
}  // namespace kvart
