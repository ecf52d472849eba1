// KvCache when the system has no memory for its lists. Each operation is run with an operator new
// that fails at its first allocation, then at its second, and so on until it succeeds: each time
// nothing has changed, and in the end the cache is as one that never lacked memory. All memory of
// this program is counted.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_fixture.h"
#include "cache/kv_cache.h"
#include "failing_new.h"

namespace kvart {
namespace {

// What can be seen of a cache.
struct SequenceView {
  std::vector<int32_t> tokens;
  int64_t committed = 0;
  int64_t cached = 0;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> places;  // of each group
  bool operator==(const SequenceView&) const = default;
};

struct View {
  std::vector<SequenceView> sequences;
  std::vector<int64_t> counts;  // of each group, then the counters
  bool operator==(const View&) const = default;
};

void add_counts(const BlockCounts& c, std::vector<int64_t>& to) {
  for (const int64_t count : {c.pages_free, c.pages_cached, c.pages_referenced, c.slots_free,
                              c.slots_cached, c.slots_referenced}) {
    to.push_back(count);
  }
}

View view_of(const KvCache& cache, const std::vector<SequenceId>& ids) {
  View view;
  for (const SequenceId id : ids) {
    SequenceView& sequence = view.sequences.emplace_back();
    sequence.tokens.assign(cache.tokens(id).begin(), cache.tokens(id).end());
    sequence.committed = cache.committed(id);
    sequence.cached = cache.cached_tokens(id);
    for (int group = 0; group < cache.page_layout().groups(); ++group) {
      auto& places = sequence.places.emplace_back();
      for (const BlockPlace place : cache.blocks(id, group)) {
        places.emplace_back(place.page, place.slot);
      }
    }
  }
  for (int group = 0; group < cache.page_layout().groups(); ++group) {
    add_counts(cache.counts(group), view.counts);
  }
  const CacheStats stats = cache.stats();
  for (const int64_t count :
       {stats.prefix_hits_tokens, stats.prefix_queries_tokens, stats.evictions, stats.host_blocks,
        stats.swapped_out_blocks, stats.swapped_in_blocks}) {
    view.counts.push_back(count);
  }
  return view;
}

// What an operation gave, so that it can be compared.
struct Outcome {
  std::optional<ErrorCode> error;
  std::string message;
  SequenceId id = -1;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const Status& status) {
  if (status.ok()) return {};
  return {status.error().code, status.error().message, -1};
}

Outcome outcome_of(const Result<SequenceId>& result) {
  if (result.ok()) return {std::nullopt, "", *result};
  return {result.error().code, result.error().message, -1};
}

Outcome outcome_of(const Result<int64_t>& length) {
  if (length.ok()) return {std::nullopt, "", static_cast<SequenceId>(*length)};
  return {length.error().code, length.error().message, -1};
}

// Two caches that are given the same operations: one always has memory, the other lacks it at each
// allocation in turn.
class Twins {
 public:
  Twins(const SmallCache& small, uint64_t seed)
      : rich_(make_cache(small)), poor_(make_cache(small)), random_(seed) {}

  void step() {
    const int action = pick(0, 99);
    if (ids_.empty() || (action < 18 && ids_.size() < 5)) return start();
    const SequenceId id = ids_[static_cast<size_t>(pick(0, static_cast<int>(ids_.size()) - 1))];
    if (action < 60) return grow(id);
    if (action < 68) return commit(id, static_cast<int64_t>(pick(0, 1 << 20)));
    if (action < 78) return truncate(id);
    if (action < 88) return fork(id);
    if (action < 97) return release(id);
    if (action < 99) return always("poison", [&](KvCache& cache) { cache.poison(id); });
    always("reset", [](KvCache& cache) { cache.reset_prefix_cache(); });
  }

  void drain() {
    while (!ids_.empty()) release(ids_.back());
    always("reset", [](KvCache& cache) { cache.reset_prefix_cache(); });
    const CacheStats stats = poor_->stats();
    EXPECT_EQ(stats.pages_free, stats.pages_total);
    EXPECT_EQ(stats.slots_free, stats.slots_total);
  }

  // A run in which nothing fails or is evicted tests nothing.
  void expect_busy(const SmallCache& small) const {
    for (const int64_t failed : {starts_failed_, reserves_failed_, forks_failed_}) {
      EXPECT_GT(failed, 20);
    }
    EXPECT_GT(truncates_failed_, 0);
    if (!small.prefix_caching) return;
    EXPECT_GT(poor_->stats().evictions, 20);
    if (small.host_bytes == 0) return;
    EXPECT_GT(restores_failed_, 20);
    EXPECT_GT(poor_->stats().swapped_in_blocks, 0);
  }
  [[nodiscard]] int64_t hits() const { return poor_->stats().prefix_hits_tokens; }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void compare(const char* what) {
    poor_->check_integrity();
    ASSERT_TRUE(view_of(*poor_, ids_) == view_of(*rich_, ids_)) << what;
    for (const SequenceId id : ids_) Writer(poor_.get()).verify(id);
  }

  // An operation that may fail for lack of memory.
  template <class Operation>
  Outcome fallible(const char* what, const Operation& operation, int64_t& failed) {
    const View before = view_of(*poor_, ids_);
    const Outcome wanted = outcome_of(operation(*rich_));
    fails_on = pick(0, 1) == 0;
    for (int64_t n = 0;; ++n) {
      failures = 0;
      successes_left = n;
      const auto result = operation(*poor_);
      successes_left = never;
      const Outcome got = outcome_of(result);
      if (failures == 0) {
        EXPECT_TRUE(got == wanted) << what << ": " << got.message << ", not " << wanted.message;
        return got;
      }
      ++failed;
      EXPECT_EQ(got.error, ErrorCode::out_of_memory) << what << " without allocation " << n;
      poor_->check_integrity();
      EXPECT_TRUE(view_of(*poor_, ids_) == before) << what << " without allocation " << n;
      if (testing::Test::HasFailure()) return got;
    }
  }

  // An operation that needs no memory.
  template <class Operation>
  void always(const char* what, const Operation& operation) {
    operation(*rich_);
    const int64_t before = allocations;
    operation(*poor_);
    ASSERT_EQ(allocations, before) << what << " takes memory";
    compare(what);
  }

  // Texts that share beginnings.
  std::vector<int32_t> random_text() {
    const auto document = static_cast<uint64_t>(pick(1, 3));
    std::vector<int32_t> text = text_tokens(document, 64 * pick(0, 5));
    const auto other = static_cast<uint64_t>(pick(4, 6));
    const auto tail = text_tokens(other, pick(0, 200));
    text.insert(text.end(), tail.begin(), tail.end());
    return text;
  }

  void start() {
    const std::vector<int32_t> prompt = random_text();
    const std::string salt =
        pick(0, 2) == 0 ? "" : "a salt that no string holds without memory of its own";
    const auto length = static_cast<int64_t>(prompt.size()) + 100;
    fallible(
        "can_start",
        [&](KvCache& cache) {
          return cache.can_start(prompt, salt, length, 200) ? Status{} : no_memory();
        },
        starts_failed_);
    compare("can_start");
    const Outcome started = fallible(
        "start", [&](KvCache& cache) { return cache.start(prompt, salt); }, starts_failed_);
    ASSERT_FALSE(started.error) << started.message;
    ids_.push_back(started.id);
    compare("start");
    const Outcome restored = fallible(
        "restore", [&](KvCache& cache) { return cache.restore(started.id, prompt); },
        restores_failed_);
    ASSERT_FALSE(restored.error) << restored.message;
    compare("restore");
    grow(started.id);
  }

  void grow(SequenceId id) {
    const int64_t first = poor_->appended(id);
    if (poor_->committed(id) != first) return commit(id, first);
    const std::vector<int32_t> tokens = random_text();
    const auto durability = pick(0, 3) == 0 ? Durability::speculative : Durability::final;
    const Outcome reserved = fallible(
        "reserve", [&](KvCache& cache) { return cache.reserve(id, tokens, durability); },
        reserves_failed_);
    if (reserved.error) {
      compare("reserve");
      return release(ids_.front());
    }
    if (pick(0, 7) == 0 && poor_->committed(id) == first) {
      return always("unreserve", [&](KvCache& cache) { cache.unreserve(id); });
    }
    Writer(rich_.get()).write(id, first);
    Writer(poor_.get()).write(id, first);
    compare("reserve");
    if (pick(0, 2) != 0) commit(id, poor_->appended(id));
  }

  void commit(SequenceId id, int64_t length) {
    const int64_t end = std::clamp(length, poor_->committed(id), poor_->appended(id));
    always("commit", [&](KvCache& cache) { cache.commit(id, end); });
  }

  void truncate(SequenceId id) {
    const int64_t length = poor_->appended(id) - pick(0, 90);
    fallible(
        "truncate", [&](KvCache& cache) { return cache.truncate(id, length); }, truncates_failed_);
    compare("truncate");
  }

  void fork(SequenceId id) {
    commit(id, poor_->appended(id));
    if (ids_.size() >= 7) return;
    const Outcome child = fallible(
        "fork", [&](KvCache& cache) { return cache.fork(id); }, forks_failed_);
    if (!child.error) ids_.push_back(child.id);
    compare("fork");
  }

  void release(SequenceId id) {
    std::erase(ids_, id);
    always("release", [&](KvCache& cache) { cache.release(id); });
  }

  std::unique_ptr<KvCache> rich_;
  std::unique_ptr<KvCache> poor_;
  std::mt19937_64 random_;
  std::vector<SequenceId> ids_;
  int64_t starts_failed_ = 0;
  int64_t restores_failed_ = 0;
  int64_t reserves_failed_ = 0;
  int64_t truncates_failed_ = 0;
  int64_t forks_failed_ = 0;
};

const std::vector<SmallCache>& caches() {
  static const std::vector<SmallCache> all = {
      {.pages = 16, .slots = 6},
      {.pages = 16, .slots = 9, .sinks = 1, .key_bits = 2},
      {.pages = 16, .slots = 8, .sinks = 1, .prefix_caching = false},
      {.pages = 20, .slots = 10, .sinks = 1, .windows = {{96, 12, 10}, {200, 16, 10}}},
      {.windows = {{64, 9, 7}}, .full = false},
      {.pages = 12, .slots = 8, .sinks = 1, .host_bytes = 64 << 10},
      {.pages = 16, .slots = 10, .sinks = 1, .windows = {{96, 12, 10}}, .host_bytes = 32 << 10}};
  return all;
}

TEST(KvCacheNoMemory, AFailedAllocationChangesNothing) {
  for (size_t i = 0; i < caches().size(); ++i) {
    int64_t hits = 0;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      Twins twins(caches()[i], seed);
      for (int step = 0; step < 500; ++step) {
        twins.step();
        ASSERT_FALSE(testing::Test::HasFailure())
            << "cache " << i << " seed " << seed << " step " << step;
      }
      twins.expect_busy(caches()[i]);
      hits += twins.hits();
      twins.drain();
      ASSERT_FALSE(testing::Test::HasFailure()) << "cache " << i << " seed " << seed;
    }
    EXPECT_EQ(hits > 0, caches()[i].prefix_caching) << "cache " << i;
  }
}

TEST(KvCacheNoMemory, ACacheThatCanNotBeMadeLeavesNothingBehind) {
  for (const SmallCache& small : caches()) {
    const CacheConfig config = small_config(small);
    int64_t failed = 0;
    for (int64_t n = 0;; ++n) {
      failures = 0;
      const int64_t live = live_allocations;
      {
        successes_left = n;
        const auto cache = KvCache::create(config);
        successes_left = never;
        if (failures == 0) {
          ASSERT_TRUE(cache.ok()) << cache.error().message;
          break;
        }
        ++failed;
        ASSERT_FALSE(cache.ok());
        ASSERT_EQ(cache.error().code, ErrorCode::out_of_memory);
      }
      ASSERT_EQ(live_allocations, live) << "without allocation " << n;
    }
    EXPECT_GT(failed, 10);
  }
}

// Chains of several sequences are reserved at the same time and committed in another order: none of
// them takes the memory that another was promised.
TEST(KvCacheNoMemory, CommitsNeedNoneInAnyOrder) {
  for (const int64_t blocks : {1, 9, 40}) {
    auto cache = make_cache({.pages = 4 * blocks, .slots = 4, .poison = false});
    std::vector<SequenceId> ids;
    for (uint64_t text = 0; text < 4; ++text) {
      ids.push_back(*cache->start({}, "a salt that no string holds without memory of its own"));
      ASSERT_TRUE(
          cache->reserve(ids.back(), text_tokens(text, blocks * 64), Durability::final).ok());
    }
    const int64_t before = allocations;
    for (const size_t i : {2u, 0u, 3u, 1u}) cache->commit(ids[i], blocks * 64);
    EXPECT_EQ(allocations, before);
    cache->check_integrity();
    EXPECT_EQ(cache->cached_tokens(
                  *cache->start(text_tokens(3, blocks * 64 + 1),
                                "a salt that no string holds without memory of its own")),
              blocks * 64);
  }
}

// A list that grows token by token is moved a few times, not at each step.
TEST(KvCacheNoMemory, ListsGrowByAFactor) {
  auto cache = make_cache({.pages = 70, .slots = 2, .poison = false});
  const SequenceId id = *cache->start({}, "");
  const auto tokens = text_tokens(1, 4096);
  const int64_t before = allocations;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_TRUE(cache->reserve(id, std::span(tokens).subspan(i, 1), Durability::final).ok());
    cache->commit(id, static_cast<int64_t>(i) + 1);
  }
  EXPECT_LT(allocations - before, 120);  // mostly nodes of the index
}

}  // namespace
}  // namespace kvart
