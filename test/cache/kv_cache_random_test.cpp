// KvCache against an obvious model: long random runs in pools that are always too small, with every
// invariant and every byte checked after each step. A failure prints the seed and the step that
// replay it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "cache/kv_cache.h"
#include "rounds.h"

namespace kvart {
namespace {

struct Setting {
  const char* name;
  SmallCache cache;
  int steps;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

// What the model knows of a sequence.
struct ModelSequence {
  std::string salt;
  std::vector<int32_t> text;    // where it is heading
  std::vector<int32_t> tokens;  // appended
  int64_t committed = 0;
  int64_t floor = 0;  // of truncate
  // The last step, if it was final: whole blocks in it have no slot.
  int64_t step_begin = 0;
  int64_t step_end = 0;
  Durability uncommitted = Durability::final;
  bool shareable = true;

  [[nodiscard]] int64_t appended() const { return static_cast<int64_t>(tokens.size()); }
};

class RandomRun {
 public:
  RandomRun(const SmallCache& small, uint64_t seed)
      : small_(small),
        group_sizes_(small.groups()),
        cache_(make_cache(small)),
        writer_(cache_.get()),
        random_(seed),
        stored_(group_sizes_.size()) {}

  void step() {
    const int action = pick(0, 99);
    if (live_.empty() || (action < 15 && live_.size() < 6)) return start();
    if (action < 55) return grow();
    if (action < 68) return commit();
    if (action < 80) return truncate();
    if (action < 86) return fork();
    if (action < 97) return release();
    if (action < 99) return poison();
    reset();
  }

  void check() {
    cache_->check_integrity();
    const CacheStats stats = cache_->stats();
    host_was_full_ = host_was_full_ || stats.host_bytes_used + 8192 > stats.host_bytes_total;
    for (const auto& [id, sequence] : live_) {
      ASSERT_EQ(cache_->appended(id), sequence.appended());
      ASSERT_EQ(cache_->committed(id), sequence.committed);
      const auto tokens = cache_->tokens(id);
      ASSERT_TRUE(
          std::equal(tokens.begin(), tokens.end(), sequence.tokens.begin(), sequence.tokens.end()));
      writer_.verify(id);
    }
    for (int g = 0; g < groups(); ++g) {
      const BlockCounts counts = cache_->counts(g);
      ASSERT_EQ(counts.pages_free + counts.pages_cached + counts.pages_referenced, group(g).pages);
      ASSERT_EQ(counts.slots_free + counts.slots_cached + counts.slots_referenced, group(g).slots);
      ASSERT_EQ(counts.pages_referenced, pages_in_use(g));
      ASSERT_EQ(counts.slots_referenced, slots_in_use(g));
      for (const auto& [id, sequence] : live_) check_places(id, sequence, g);
    }
  }

  // Everything comes back.
  void drain() {
    while (!live_.empty()) {
      cache_->release(live_.begin()->first);
      live_.erase(live_.begin());
      cache_->check_integrity();
    }
    EXPECT_EQ(cache_->stats().pages_referenced + cache_->stats().slots_referenced, 0);
    cache_->reset_prefix_cache();
    cache_->check_integrity();
    EXPECT_EQ(cache_->stats().pages_free, cache_->stats().pages_total);
    EXPECT_EQ(cache_->stats().slots_free, cache_->stats().slots_total);
    EXPECT_EQ(cache_->stats().host_blocks, 0);
  }

  // A run in which nothing is hit, refused or evicted tests nothing.
  void expect_busy() const {
    SCOPED_TRACE("evictions " + std::to_string(cache_->stats().evictions) + ", hits " +
                 std::to_string(cache_->stats().prefix_hits_tokens));
    EXPECT_GT(refused_, 20);
    EXPECT_GT(rolled_back_, 20);
    EXPECT_GT(given_back_, 5);
    if (small_.host_bytes > 0) {
      EXPECT_GT(cache_->stats().swapped_in_blocks, 10);
      EXPECT_GT(cache_->stats().swapped_out_blocks, cache_->stats().swapped_in_blocks);
      EXPECT_EQ(cache_->stats().damaged_host_blocks, 0);
    }
    if (!small_.prefix_caching) return;
    EXPECT_GT(cache_->stats().evictions, 50);
    if (parks()) {
      EXPECT_GT(unparked_, small_.windows.empty() ? 10 : 0);
    }
    EXPECT_GT(cache_->stats().prefix_hits_tokens, 64 * 20);
  }

 private:
  using Live = std::map<SequenceId, ModelSequence>;
  using Prefixes = std::set<std::pair<std::string, std::vector<int32_t>>>;

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  Live::iterator any() {
    return std::next(live_.begin(), pick(0, static_cast<int>(live_.size()) - 1));
  }

  // Texts that share beginnings: one of a few documents up to a random place, then another.
  std::vector<int32_t> random_text() {
    std::vector<int32_t> text = text_tokens(static_cast<uint64_t>(pick(1, 4)), 64 * 6);
    if (pick(0, 2) != 0)
      text.resize(static_cast<size_t>(pick(0, 2) == 0 ? pick(0, 383) : 64 * pick(1, 4)));
    for (const int32_t token : text_tokens(static_cast<uint64_t>(pick(5, 8)), 300))
      text.push_back(token);
    return text;
  }

  // Slots are few enough to be parked, and pages many enough.
  [[nodiscard]] bool parks() const {
    return small_.sinks > 0 && small_.host_bytes == 0 && small_.full && small_.pages >= 16;
  }
  [[nodiscard]] int groups() const { return static_cast<int>(group_sizes_.size()); }
  [[nodiscard]] const SmallGroup& group(int g) const {
    return group_sizes_[static_cast<size_t>(g)];
  }
  // The first block that a query at the start of `block` sees.
  [[nodiscard]] int64_t seen_from(int g, int64_t block) const {
    const int64_t oldest = block * 64 - group(g).window + 1;
    return group(g).window == 0 || oldest < 0 ? 0 : oldest / 64;
  }

  // Whatever a query from `floor` on may see has its place, and between steps nothing else has.
  void check_places(SequenceId id, const ModelSequence& sequence, int g) const {
    const auto places = cache_->blocks(id, g);
    const int64_t seen = seen_from(g, sequence.floor / 64);
    for (int64_t block = 0; block < static_cast<int64_t>(places.size()); ++block) {
      const BlockPlace place = places[static_cast<size_t>(block)];
      const bool page = place.page >= 0;
      const bool sealed = block >= small_.sinks && (block + 1) * 64 <= sequence.appended();
      if (block >= seen) {
        ASSERT_EQ(page, sealed) << "group " << g << " block " << block;
        ASSERT_TRUE(page || place.slot >= 0) << "group " << g << " block " << block;
      } else if (sequence.committed == sequence.appended()) {
        ASSERT_TRUE(!page && place.slot < 0) << "group " << g << " block " << block;
      }
    }
  }

  [[nodiscard]] int64_t pages_in_use(int g) const {
    std::set<int32_t> pages;
    for (const auto& [id, sequence] : live_) {
      for (const BlockPlace place : cache_->blocks(id, g)) pages.insert(place.page);
    }
    pages.erase(-1);
    return static_cast<int64_t>(pages.size());
  }
  [[nodiscard]] int64_t slots_in_use(int g) const {
    std::set<int32_t> slots;
    for (const auto& [id, sequence] : live_) {
      for (const BlockPlace place : cache_->blocks(id, g)) slots.insert(place.slot);
    }
    slots.erase(-1);
    return static_cast<int64_t>(slots.size());
  }

  static std::vector<int32_t> first(const std::vector<int32_t>& tokens, int64_t count) {
    return {tokens.begin(), tokens.begin() + count};
  }

  void start() {
    ModelSequence sequence;
    sequence.salt = pick(0, 3) == 0 ? "other" : "";
    sequence.text = random_text();
    const std::vector<int32_t> prompt =
        first(sequence.text, pick(0, 3) == 0 ? pick(0, 63) : pick(64, 400));
    const int64_t evictions = cache_->stats().evictions;
    const Result<SequenceId> id = cache_->start(prompt, sequence.salt);
    ASSERT_TRUE(id.ok());
    const int64_t hit = cache_->cached_tokens(*id);
    const int64_t longest =
        prompt.empty() ? 0 : (static_cast<int64_t>(prompt.size()) - 1) / 64 * 64;
    ASSERT_EQ(cache_->stats().evictions, evictions);
    ASSERT_LE(hit, longest);
    ASSERT_EQ(hit % 64, 0);
    if (hit > 0) {
      ASSERT_TRUE(committed_.contains({sequence.salt, first(prompt, hit)}))
          << "a prefix that nobody committed";
    }
    // At least what a living sequence holds; exactly what was ever stored if nothing was evicted.
    for (const auto& [other_id, other] : live_) {
      if (!other.shareable || other.salt != sequence.salt) continue;
      int64_t common = 0;
      while (common < std::min(longest, other.committed / 64 * 64) &&
             std::equal(prompt.begin() + common, prompt.begin() + common + 64,
                        other.tokens.begin() + common)) {
        common += 64;
      }
      // Of windowed layers it has only what is seen from where it stands.
      if (!small_.windows.empty() && common != other.floor) continue;
      ASSERT_GE(hit, common);
    }
    if (evictions == evictions_at_reset_ && cache_->stats().parked_slots == 0) {
      ASSERT_EQ(hit, longest_stored(sequence.salt, prompt, longest));
    }
    const int64_t have = pick(0, 2) == 0 ? hit : restore(*id, sequence.salt, prompt, hit);
    sequence.tokens = first(prompt, have);
    sequence.committed = sequence.floor = have;
    sequence.shareable = small_.prefix_caching;
    live_.emplace(*id, std::move(sequence));
  }

  // What comes back was committed once. With full layers alone it is known how much that is: all
  // that was stored, if nothing was forgotten, but for what there is no room for.
  int64_t restore(SequenceId id, const std::string& salt, const std::vector<int32_t>& prompt,
                  int64_t hit) {
    const CacheStats before = cache_->stats();
    const Result<int64_t> restored = cache_->restore(id, prompt);
    EXPECT_TRUE(restored.ok());
    const int64_t longest =
        prompt.empty() ? 0 : (static_cast<int64_t>(prompt.size()) - 1) / 64 * 64;
    EXPECT_TRUE(*restored >= hit && *restored <= longest && *restored % 64 == 0) << *restored;
    EXPECT_EQ(cache_->cached_tokens(id), *restored);
    EXPECT_TRUE(*restored == hit || committed_.contains({salt, first(prompt, *restored)}));
    EXPECT_EQ(cache_->stats().swapped_in_blocks > before.swapped_in_blocks,
              small_.host_bytes > 0 && *restored > hit);
    EXPECT_TRUE(small_.host_bytes > 0 || before.parked_slots > 0 || *restored == hit);
    unparked_ += small_.host_bytes == 0 && *restored > hit ? 1 : 0;
    const bool forgotten =
        small_.host_bytes > 0 ? host_was_full_ : before.evictions != evictions_at_reset_;
    if (forgotten || !small_.prefix_caching || !small_.windows.empty()) return *restored;
    const int64_t stored = longest_stored(salt, prompt, longest);
    EXPECT_LE(*restored, stored);
    if (*restored == stored) return stored;
    int64_t pages = 0;  // for one block more than came back
    int64_t slots = 0;
    for (int64_t block = hit / 64; block <= *restored / 64; ++block) {
      ++(block < small_.sinks ? slots : pages);
    }
    EXPECT_TRUE(pages > before.pages_free + before.pages_cached ||
                slots > before.slots_free + before.slots_cached)
        << "room for " << *restored + 64;
    return *restored;
  }

  // The most tokens of which every group has all blocks that queries behind them see.
  [[nodiscard]] int64_t longest_stored(const std::string& salt, const std::vector<int32_t>& prompt,
                                       int64_t longest) const {
    for (int64_t length = small_.prefix_caching ? longest : 0; length > 0; length -= 64) {
      bool all = true;
      for (int g = 0; g < groups(); ++g) {
        for (int64_t block = seen_from(g, length / 64); block < length / 64; ++block) {
          all = all &&
                stored_[static_cast<size_t>(g)].contains({salt, first(prompt, (block + 1) * 64)});
        }
      }
      if (all) return length;
    }
    return 0;
  }

  // Pages and slots that a group needs for a step from `begin` to `end`.
  [[nodiscard]] std::pair<int64_t, int64_t> needs(int g, int64_t begin, int64_t end,
                                                  Durability durability) const {
    const bool final = durability == Durability::final;
    const int64_t last = (end - 1) / 64;
    const bool handed_over = final && begin % 64 != 0 && begin / 64 >= small_.sinks;
    int64_t pages = 0;
    int64_t slots = 0;
    for (int64_t block = begin / 64; block <= last; ++block) {
      if (final && block < seen_from(g, last)) continue;  // no query after the step sees it
      const bool full = end >= (block + 1) * 64;
      const bool sink = block < small_.sinks;
      pages += full && !sink ? 1 : 0;
      if (block * 64 < begin) continue;  // has its slot
      if (!final || sink || (!full && !handed_over)) ++slots;
    }
    return {pages, slots};
  }

  void grow() {
    auto& [id, sequence] = *any();
    const bool clean = sequence.committed == sequence.appended();
    if (!clean && sequence.uncommitted == Durability::final) return commit_some(id, sequence);
    const auto durability = !clean || pick(0, 2) == 0 ? Durability::speculative : Durability::final;
    const auto left =
        static_cast<int>(sequence.text.size()) - static_cast<int>(sequence.appended());
    if (left <= 0) return commit_some(id, sequence);
    const int sizes[] = {1, pick(1, 8), pick(1, 64), 64, pick(1, 200)};
    const int count = std::min(left, sizes[pick(0, 4)]);
    const std::vector<int32_t> tokens(sequence.text.begin() + sequence.appended(),
                                      sequence.text.begin() + sequence.appended() + count);

    const int64_t begin = sequence.appended();
    const int64_t end = begin + count;
    bool fits = true;
    for (int g = 0; g < groups(); ++g) {
      const auto [pages, slots] = needs(g, begin, end, durability);
      fits = fits && pages <= group(g).pages - pages_in_use(g) &&
             slots <= group(g).slots - slots_in_use(g);
    }
    const CacheStats before = cache_->stats();
    if (clean && durability == Durability::final) {
      ASSERT_EQ(cache_->has_room(id, count), fits);
      ASSERT_EQ(cache_->stats().evictions, before.evictions);
    }
    const Status status = cache_->reserve(id, tokens, durability);
    ASSERT_EQ(status.ok(), fits) << (status.ok() ? "" : status.error().message);
    if (!fits) {
      ++refused_;
      ASSERT_EQ(status.error().code, ErrorCode::out_of_memory);
      ASSERT_EQ(cache_->stats().evictions, before.evictions);
      ASSERT_EQ(cache_->stats().pages_free, before.pages_free);
      ASSERT_EQ(cache_->stats().slots_free, before.slots_free);
      if (pick(0, 1) == 0) release();  // someone gives way, or the run would stand still
      return;
    }
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
    sequence.uncommitted = durability;
    sequence.step_begin = begin;
    sequence.step_end = durability == Durability::final ? end : begin;
    if (durability == Durability::final) sequence.floor = (end - 1) / 64 * 64;
    if (pick(0, 9) == 0) {  // a step that never runs
      ++given_back_;
      cache_->unreserve(id);
      sequence.tokens.resize(static_cast<size_t>(sequence.committed));
      sequence.floor = sequence.committed / 64 * 64;
      sequence.step_begin = sequence.step_end = sequence.committed;
      return;
    }
    if (pick(0, 19) == 0) {  // a step that fails half-way: the caller gives up
      cache_->release(id);
      live_.erase(id);
      return;
    }
    writer_.write(id, begin);
    if (durability == Durability::final && pick(0, 3) != 0) commit_to(id, sequence, end);
  }

  void commit_to(SequenceId id, ModelSequence& sequence, int64_t length) {
    for (int64_t block = sequence.committed / 64; block < length / 64; ++block) {
      if (!sequence.shareable) break;
      const auto prefix = first(sequence.tokens, (block + 1) * 64);
      committed_.insert({sequence.salt, prefix});
      for (int g = 0; g < groups(); ++g) {
        const BlockPlace place = cache_->blocks(id, g)[static_cast<size_t>(block)];
        if (place.page >= 0 || (block < small_.sinks && place.slot >= 0)) {
          stored_[static_cast<size_t>(g)].insert({sequence.salt, prefix});
        }
      }
    }
    cache_->commit(id, length);
    sequence.committed = length;
    sequence.floor = std::max(sequence.floor, length / 64 * 64);
  }

  void commit_some(SequenceId id, ModelSequence& sequence) {
    const auto committed = static_cast<int>(sequence.committed);
    const auto appended = static_cast<int>(sequence.appended());
    commit_to(id, sequence, pick(0, 1) == 0 ? appended : pick(committed, appended));
  }

  void commit() {
    auto& [id, sequence] = *any();
    commit_some(id, sequence);
  }

  void truncate() {
    auto& [id, sequence] = *any();
    const int64_t appended = sequence.appended();
    const int64_t length = std::max<int64_t>(-1, appended - pick(-1, pick(0, 1) == 0 ? 10 : 150));
    bool allowed = length >= sequence.floor && length <= appended;
    const int64_t block_begin = length / 64 * 64;
    const bool no_slot = length / 64 >= small_.sinks && block_begin >= sequence.step_begin &&
                         block_begin + 64 <= sequence.step_end;
    if (length % 64 != 0 && no_slot) allowed = false;
    const Status status = cache_->truncate(id, length);
    ASSERT_EQ(status.ok(), allowed || length == appended) << length << " of " << appended;
    if (!status.ok()) return;
    rolled_back_ += length < appended ? 1 : 0;
    sequence.tokens.resize(static_cast<size_t>(length));
    sequence.committed = std::min(sequence.committed, length);
    // What comes next differs from what was rolled back.
    std::vector<int32_t> text = random_text();
    if (pick(0, 1) == 0) {
      sequence.text = sequence.tokens;
      sequence.text.insert(sequence.text.end(), text.begin(), text.end());
    }
  }

  void fork() {
    auto& [id, sequence] = *any();
    if (live_.size() >= 8) return;
    if (sequence.committed != sequence.appended()) commit_to(id, sequence, sequence.appended());
    bool fits = true;
    for (int g = 0; g < groups() && sequence.committed % 64 != 0; ++g) {
      fits = fits && slots_in_use(g) < group(g).slots;
    }
    const Result<SequenceId> child = cache_->fork(id);
    ASSERT_EQ(child.ok(), fits);
    if (!fits) return;
    ModelSequence copy = sequence;
    if (pick(0, 1) == 0) {
      const std::vector<int32_t> text = random_text();
      copy.text = copy.tokens;
      copy.text.insert(copy.text.end(), text.begin(), text.end());
    }
    ASSERT_TRUE(live_.emplace(*child, std::move(copy)).second);
  }

  void release() {
    const SequenceId id = any()->first;
    live_.erase(id);
    cache_->release(id);
    if (pick(0, 3) == 0) cache_->release(id);
  }

  void poison() {
    auto& [id, sequence] = *any();
    cache_->poison(id);
    sequence.shareable = false;
  }

  void reset() {
    if (pick(0, 3) != 0) return;
    cache_->reset_prefix_cache();
    committed_.clear();
    for (Prefixes& stored : stored_) stored.clear();
    evictions_at_reset_ = cache_->stats().evictions;
    for (auto& [id, sequence] : live_) sequence.shareable = false;
    ASSERT_EQ(cache_->stats().pages_cached + cache_->stats().slots_cached, 0);
  }

  SmallCache small_;
  std::vector<SmallGroup> group_sizes_;
  std::unique_ptr<KvCache> cache_;
  Writer writer_;
  std::mt19937_64 random_;
  Live live_;
  Prefixes committed_;            // prefixes that may be found
  std::vector<Prefixes> stored_;  // of each group: those whose last block was in the index
  int64_t evictions_at_reset_ = 0;
  int refused_ = 0;
  int rolled_back_ = 0;
  int given_back_ = 0;
  int unparked_ = 0;            // starts to which that brought something
  bool host_was_full_ = false;  // so that blocks may be forgotten
};

class KvCacheRandom : public testing::TestWithParam<Setting> {};

TEST_P(KvCacheRandom, AgreesWithTheModel) {
  const Setting& setting = GetParam();
  for (uint64_t seed = 1; seed <= uint64_t{rounds_of(4)}; ++seed) {
    RandomRun run(setting.cache, seed);
    for (int step = 0; step < setting.steps / 4; ++step) {
      run.step();
      if (!testing::Test::HasFailure()) run.check();
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " step " << step;
    }
    run.expect_busy();
    run.drain();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pools, KvCacheRandom,
    testing::Values(
        Setting{"no_sinks", {.pages = 16, .slots = 6}, 24'000},
        Setting{"one_sink", {.pages = 16, .slots = 9, .sinks = 1}, 24'000},
        Setting{"three_sinks", {.pages = 9, .slots = 14, .sinks = 3}, 24'000},
        Setting{"few_pages", {.pages = 6, .slots = 12, .sinks = 1}, 16'000},
        Setting{"few_slots", {.pages = 24, .slots = 3, .sinks = 1}, 16'000},
        Setting{"colliding_keys", {.pages = 20, .slots = 8, .sinks = 1, .key_bits = 2}, 16'000},
        Setting{"no_prefix_caching",
                {.pages = 16, .slots = 8, .sinks = 1, .prefix_caching = false},
                16'000},
        Setting{"full_and_window", {.pages = 24, .slots = 9, .windows = {{96, 12, 8}}}, 24'000},
        Setting{"full_and_window_sink",
                {.pages = 16, .slots = 10, .sinks = 1, .windows = {{96, 12, 10}}},
                24'000},
        Setting{"window_only", {.windows = {{64, 9, 7}}, .full = false}, 24'000},
        Setting{"window_only_sinks", {.sinks = 2, .windows = {{64, 8, 10}}, .full = false}, 24'000},
        Setting{"full_and_two_windows",
                {.pages = 24, .slots = 10, .sinks = 1, .windows = {{64, 10, 9}, {200, 20, 9}}},
                24'000},
        Setting{"few_windowed_pages", {.pages = 40, .slots = 14, .windows = {{96, 5, 9}}}, 16'000},
        Setting{"few_windowed_slots",
                {.pages = 30, .slots = 14, .sinks = 3, .windows = {{130, 14, 6}}},
                16'000},
        Setting{"colliding_keys_and_windows",
                {.pages = 20,
                 .slots = 9,
                 .sinks = 1,
                 .key_bits = 2,
                 .windows = {{96, 10, 9}, {130, 11, 9}}},
                16'000},
        Setting{"windows_without_prefix_caching",
                {.pages = 18,
                 .slots = 8,
                 .sinks = 1,
                 .prefix_caching = false,
                 .windows = {{96, 10, 8}}},
                16'000},
        Setting{"host", {.pages = 16, .slots = 9, .sinks = 1, .host_bytes = 48 << 10}, 16'000},
        Setting{
            "host_for_all", {.pages = 12, .slots = 8, .sinks = 2, .host_bytes = 3 << 20}, 4'000},
        Setting{
            "host_for_few", {.pages = 16, .slots = 8, .sinks = 1, .host_bytes = 9 << 10}, 16'000},
        Setting{"host_and_colliding_keys",
                {.pages = 12, .slots = 8, .sinks = 1, .key_bits = 1, .host_bytes = 96 << 10},
                16'000},
        Setting{"host_and_windows",
                {.pages = 16,
                 .slots = 10,
                 .sinks = 1,
                 .windows = {{64, 10, 9}, {200, 16, 9}},
                 .host_bytes = 128 << 10},
                16'000},
        Setting{"host_and_windows_only",
                {.sinks = 1, .windows = {{96, 9, 9}}, .full = false, .host_bytes = 64 << 10},
                16'000}),
    [](const testing::TestParamInfo<Setting>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvart
