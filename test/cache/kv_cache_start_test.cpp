// KvCache::can_start: what it promises is kept however the tokens are cut into steps, and nobody is
// refused for what is cached.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "cache/kv_cache.h"
#include "rounds.h"

namespace kvart {
namespace {

struct Shape {
  std::vector<int> windows;  // 0: sees all
  int sinks = 0;
  int64_t context = 0;
  int64_t sequences = 0;
  int64_t open_sequences = 0;
  int64_t step_tokens = 0;
  uint64_t host_bytes = 0;
};

std::string text_of(const Shape& shape) {
  std::string text = "windows";
  for (const int window : shape.windows) text += " " + std::to_string(window);
  return text + " sinks " + std::to_string(shape.sinks) + " context " +
         std::to_string(shape.context) + " sequences " + std::to_string(shape.sequences) + " of " +
         std::to_string(shape.open_sequences) + " steps of " + std::to_string(shape.step_tokens) +
         " host " + std::to_string(shape.host_bytes);
}

std::unique_ptr<KvCache> planned_cache(const Shape& shape) {
  CacheConfig config;
  for (const int window : shape.windows) config.shape.layers.push_back({1, 16, window});
  config.policy = policy_of("int4,sink=" + std::to_string(shape.sinks));
  config.plan = *plan_memory({config.shape, config.policy, shape.context, shape.sequences, 0,
                              shape.step_tokens, shape.open_sequences});
  config.host_bytes = shape.host_bytes;
  auto created = KvCache::create(config);
  EXPECT_TRUE(created.ok());
  return std::move(*created);
}

// Sequences are admitted by can_start, run to the length that was asked for, in random cuts, stay
// for a while, are given up and start again. Their texts continue cached ones.
class Admissions {
 public:
  Admissions(const Shape& shape, uint64_t seed)
      : shape_(shape), random_(seed), cache_(planned_cache(shape)) {}

  void step() {
    while (!live_.empty() && pick(0, 2) == 0) give_up();
    const std::vector<int32_t> text = pick(0, 1) == 0 && !ended_.empty() ? ended_ : random_text();
    const int64_t length = pick(0, 3) == 0 ? shape_.context : pick(1, shape_.context);
    const auto prompt =
        std::span(text).first(static_cast<size_t>(pick(0, 1) == 0 ? length : pick(0, length)));
    const CacheStats before = cache_->stats();
    const bool admitted = cache_->can_start(prompt, "", length, shape_.step_tokens);
    expect_unchanged(before);
    // Fewer than were planned for: whatever they hold, there is room for another.
    const bool planned = static_cast<int64_t>(live_.size()) < shape_.sequences;
    ASSERT_TRUE(admitted || !planned) << length;
    if (!admitted) {
      ++refused_;
      return give_up();
    }
    const SequenceId id = *cache_->start(prompt, "");
    ASSERT_TRUE(pick(0, 3) == 0 || cache_->restore(id, prompt).ok());
    hits_ += cache_->cached_tokens(id) > 0 ? 1 : 0;
    live_.push_back({id, text});
    run(id, text, length);
  }

  [[nodiscard]] int64_t refused() const { return refused_; }
  [[nodiscard]] int64_t hits() const { return hits_; }
  [[nodiscard]] const KvCache& cache() const { return *cache_; }

 private:
  struct Live {
    SequenceId id;
    std::vector<int32_t> text;
  };

  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  std::vector<int32_t> random_text() {
    return random_text_with_common_start(
        shape_.context, [this](int64_t low, int64_t high) { return pick(low, high); });
  }

  void run(SequenceId id, const std::vector<int32_t>& text, int64_t length) {
    const bool whole_steps = pick(0, 1) == 0;
    while (cache_->appended(id) < length) {
      const int64_t sizes[] = {1, pick(1, 70), 64, pick(1, shape_.step_tokens)};
      const int64_t most = std::min(shape_.step_tokens, length - cache_->appended(id));
      const int64_t count = whole_steps ? most : std::min(most, sizes[pick(0, 3)]);
      const Status status =
          append(*cache_, id,
                 std::span(text).subspan(static_cast<size_t>(cache_->appended(id)),
                                         static_cast<size_t>(count)));
      ASSERT_TRUE(status.ok()) << status.error().message << ": " << cache_->appended(id) << " + "
                               << count << " of " << length;
    }
    cache_->check_integrity();
    Writer(cache_.get()).verify(id);
  }

  void give_up() {
    const auto which = pick(0, static_cast<int64_t>(live_.size()) - 1);
    ended_ = live_[static_cast<size_t>(which)].text;
    cache_->release(live_[static_cast<size_t>(which)].id);
    live_.erase(live_.begin() + which);
  }

  void expect_unchanged(const CacheStats& before) const {
    const CacheStats now = cache_->stats();
    EXPECT_EQ(now.prefix_queries_tokens, before.prefix_queries_tokens);
    EXPECT_EQ(now.prefix_hits_tokens, before.prefix_hits_tokens);
    EXPECT_EQ(now.evictions, before.evictions);
    EXPECT_EQ(now.pages_cached, before.pages_cached);
    EXPECT_EQ(now.slots_cached, before.slots_cached);
  }

  Shape shape_;
  std::mt19937_64 random_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Live> live_;
  std::vector<int32_t> ended_;  // the last one's
  int64_t refused_ = 0;
  int64_t hits_ = 0;
};

TEST(KvCacheStart, WhatFitsThePlanIsNeverRefusedForWhatIsCached) {
  const std::vector<std::vector<int>> windows = {{0},     {0, 96},   {64},  {0, 64, 200}, {1},
                                                 {0, 65}, {66, 130}, {512}, {0, 256}};
  std::mt19937_64 random(1);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int64_t refused = 0;
  int64_t hits = 0;
  int64_t restored = 0;
  for (int i = 0; i < rounds_of(400); ++i) {
    Shape shape;
    shape.windows = windows[static_cast<size_t>(pick(0, 8))];
    shape.sinks = static_cast<int>(pick(0, 3));
    shape.context = pick(1, 1100);
    shape.sequences = pick(1, 2);
    shape.open_sequences = shape.sequences + pick(0, 2);
    const int64_t steps[] = {1, 64, 65, 66, 130, 200, 512, pick(1, 600)};
    shape.step_tokens = steps[pick(0, 7)];
    shape.host_bytes = pick(0, 1) == 0 ? 0 : 1 << 18;
    Admissions run(shape, random());
    for (int step = 0; step < 30; ++step) {
      run.step();
      ASSERT_FALSE(testing::Test::HasFailure()) << text_of(shape) << ", step " << step;
    }
    refused += run.refused();
    hits += run.hits();
    restored += run.cache().stats().swapped_in_blocks;
  }
  EXPECT_GT(refused, rounds_of(200));
  EXPECT_GT(hits, rounds_of(200));
  EXPECT_GT(restored, rounds_of(200));
}

// The figures of a model with a window of 512: with one sequence's memory a prompt of any length
// goes on behind a cached one, and with the cached blocks.
TEST(KvCacheStart, APromptOfAnyLengthContinuesACachedOne) {
  for (const int64_t step_tokens : {64, 512}) {
    const auto cache = planned_cache({{0, 512}, 0, 2048, 1, 1, step_tokens, 0});
    const std::vector<int32_t> text = text_tokens(1, 2048);
    cache->release(prefill(*cache, {text.begin(), text.begin() + 1000}, "", step_tokens));
    for (int64_t length = 1001; length <= 2048; ++length) {
      const auto prompt = std::span(text).first(static_cast<size_t>(length));
      ASSERT_TRUE(cache->can_start(prompt, "", length, step_tokens))
          << length << " in steps of " << step_tokens;
    }
    EXPECT_EQ(cache->cached_tokens(prefill(*cache, text, "", step_tokens)), 64 * 15);
  }
}

TEST(KvCacheStart, AskingMakesNoBlockYounger) {
  auto cache = make_cache({.pages = 8, .slots = 4});
  cache->release(prefill(*cache, text_tokens(1, 64 * 3 + 1), ""));
  cache->release(prefill(*cache, text_tokens(2, 64 * 3 + 1), ""));
  const SequenceId other = prefill(*cache, text_tokens(3, 64 * 2), "");
  const auto waiting = text_tokens(1, 64 * 10);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(cache->can_start(waiting, "", 64 * 10, 512));
  EXPECT_EQ(cache->stats().prefix_queries_tokens, 64 * 8 + 2);
  ASSERT_TRUE(append(*cache, other, text_tokens(4, 64 * 2)).ok());
  EXPECT_EQ(cache->cached_tokens(*cache->start(text_tokens(2, 64 * 3 + 1), "")), 64 * 3);
  EXPECT_EQ(cache->cached_tokens(*cache->start(text_tokens(1, 64 * 3 + 1), "")), 64);
}

// Cached blocks of the prefix can't be evicted for the rest.
TEST(KvCacheStart, ThePrefixCountsBesideTheRest) {
  auto cache = make_cache({.pages = 4, .slots = 1});
  cache->release(prefill(*cache, text_tokens(1, 64 * 3), ""));
  const auto text = text_tokens(1, 64 * 4);
  EXPECT_TRUE(cache->can_start(text, "", 64 * 4 + 63, 512));
  EXPECT_FALSE(cache->can_start(text, "", 64 * 5, 512));
  const SequenceId twin = prefill(*cache, text_tokens(1, 64 * 3), "");  // takes no page of its own
  EXPECT_TRUE(cache->can_start(text, "", 64 * 4 + 63, 512));
  ASSERT_TRUE(append(*cache, twin, text_tokens(2, 1)).ok());
  EXPECT_FALSE(cache->can_start(text, "", 64 * 4 + 63, 512)) << "no slot for the open block";
}

}  // namespace
}  // namespace kvart
