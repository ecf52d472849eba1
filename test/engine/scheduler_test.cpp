// The scheduler against a simulated memory: a hundred thousand random steps, and the cases that
// schedulers have failed at.
#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace kvart {
namespace {

constexpr int64_t block = 64;

int64_t blocks_of(int64_t tokens) {
  return (tokens + block - 1) / block;
}

// A pool of blocks that are not shared. What is cached of an entry is up to `cached`.
class SimulatedMemory final : public SequenceMemory {
 public:
  explicit SimulatedMemory(int64_t blocks) : total_(blocks) {}

  std::optional<int64_t> start(EntryId entry, int64_t tokens, int64_t promised) override {
    EXPECT_EQ(held_.count(entry), 0u) << "started twice";
    if (used() + blocks_of(tokens + promised) > total_) return std::nullopt;
    const int64_t cached = cached_ ? cached_(tokens) : 0;
    held_[entry] = {cached, cached};
    return cached;
  }
  bool reserve(EntryId entry, int64_t computed, int64_t count) override {
    EXPECT_EQ(held_.count(entry), 1u);
    Held& held = held_[entry];
    EXPECT_EQ(held.computed, computed);
    EXPECT_EQ(held.reserved, computed) << "reserved twice";
    if (used() - blocks_of(held.reserved) + blocks_of(computed + count) > total_) return false;
    held.reserved = computed + count;
    return true;
  }
  void release(EntryId entry) override {
    EXPECT_EQ(held_.erase(entry), 1u) << "released, but held nothing";
  }

  void compute(EntryId entry, int64_t count) {
    Held& held = held_.at(entry);
    held.computed += count;
    EXPECT_EQ(held.computed, held.reserved);
  }
  [[nodiscard]] int64_t used() const {
    int64_t blocks = 0;
    for (const auto& [id, held] : held_) blocks += blocks_of(held.reserved);
    return blocks;
  }
  [[nodiscard]] size_t entries() const { return held_.size(); }

  std::function<int64_t(int64_t tokens)> cached_;

 private:
  struct Held {
    int64_t computed = 0, reserved = 0;
  };
  int64_t total_;
  std::map<EntryId, Held> held_;
};

// What the test knows of an entry.
struct Expected {
  SchedulerEntry entry;
  int64_t answer = 0;  // tokens still to be sampled
  bool paused = false;
};

bool comes_before(const Expected& a, const Expected& b) {
  if (a.paused != b.paused) return b.paused;
  if (a.entry.priority != b.entry.priority) return a.entry.priority < b.entry.priority;
  return a.entry.arrival < b.entry.arrival;
}

class RandomRun {
 public:
  RandomRun(uint64_t seed, SchedulerLimits limits, int64_t blocks)
      : random_(seed), limits_(limits), blocks_(blocks), memory_(blocks), scheduler_(limits) {
    memory_.cached_ = [this](int64_t tokens) {
      return chance(2) ? block * pick(0, (tokens - 1) / block) : 0;
    };
  }

  void steps(int count) {
    for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
      change();
      step();
    }
  }

  // Nobody is added any more: all end.
  void drain() {
    for (auto& [id, expected] : entries_) pause(id, false);
    int64_t left = 0;
    for (const auto& [id, expected] : entries_)
      left += 2 * (expected.entry.tokens + expected.answer);
    // Each step computes a token of the first one at least, which loses nothing again.
    for (; !entries_.empty() && left >= 0 && !testing::Test::HasFailure(); --left) step();
    EXPECT_TRUE(entries_.empty()) << "no end";
    EXPECT_EQ(memory_.entries(), 0u);
    EXPECT_EQ(scheduler_.running() + scheduler_.waiting(), 0);
  }

 private:
  int64_t pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool chance(int one_in) { return pick(1, one_in) == 1; }

  void change() {
    if (entries_.size() < 40 && chance(3)) add();
    if (entries_.empty()) return;
    auto any = entries_.begin();
    std::advance(any, pick(0, static_cast<int64_t>(entries_.size()) - 1));
    if (chance(20)) {
      scheduler_.remove(any->first, memory_);
      scheduler_.remove(any->first, memory_);  // idempotent
      entries_.erase(any);
    } else if (chance(10)) {
      pause(any->first, !any->second.paused);
    }
  }

  void pause(EntryId id, bool paused) {
    entries_.at(id).paused = paused;
    scheduler_.set_paused(id, paused);
  }

  void add() {
    Expected expected;
    expected.entry.id = ++last_id_;
    expected.entry.arrival = last_id_;
    expected.entry.priority = static_cast<int>(chance(4) ? pick(-2, 2) : 0);
    // With its answer it fits alone.
    expected.entry.tokens = pick(1, chance(2) ? 100 : blocks_ * block - 1);
    expected.entry.scored = chance(5);
    expected.answer = pick(1, std::min<int64_t>(200, blocks_ * block - expected.entry.tokens));
    scheduler_.add(expected.entry);
    entries_[expected.entry.id] = expected;
  }

  // The first entry that holds memory and runs freely, or null.
  [[nodiscard]] const Expected* first_running() const {
    const Expected* first = nullptr;
    for (const auto& [id, expected] : entries_) {
      if (!expected.paused && scheduler_.is_running(id) &&
          (first == nullptr || comes_before(expected, *first))) {
        first = &expected;
      }
    }
    return first;
  }

  void step() {
    const Expected* first = first_running();
    const auto work = scheduler_.plan(memory_);
    if (first != nullptr && !scheduler_.is_running(first->entry.id)) {
      const auto admitted = scheduler_.admitted();
      EXPECT_TRUE(std::any_of(admitted.begin(), admitted.end(), [&](EntryId id) {
        return entries_.at(id).entry.priority < first->entry.priority;
      })) << "the first one lost its memory to nobody before it";
    }
    EXPECT_FALSE(scheduler_.hopeless().has_value());
    check(work);
    const std::vector<ScheduledWork> items(work.begin(), work.end());
    for (const ScheduledWork& item : items) {
      memory_.compute(item.id, item.count);
      Expected& expected = entries_.at(item.id);
      scheduler_.done(item.id, item.to_the_end);
      if (!item.to_the_end) continue;
      expected.entry.tokens += 1;
      if (--expected.answer > 0) continue;
      scheduler_.remove(item.id, memory_);
      entries_.erase(item.id);
    }
  }

  void check(std::span<const ScheduledWork> work) {
    int64_t tokens = 0;
    int64_t scored = 0;
    std::set<EntryId> ids;
    for (const ScheduledWork& item : work) {
      tokens += item.count;
      const Expected& expected = entries_.at(item.id);
      EXPECT_TRUE(ids.insert(item.id).second);
      EXPECT_GT(item.count, 0);
      EXPECT_FALSE(expected.paused);
      EXPECT_TRUE(scheduler_.is_running(item.id));
      EXPECT_EQ(item.to_the_end, item.first + item.count == expected.entry.tokens);
      EXPECT_LE(item.first + item.count, expected.entry.tokens);
      scored += expected.entry.scored ? item.count : 0;
    }
    EXPECT_LE(tokens, limits_.step_tokens);
    EXPECT_LE(scored, limits_.scored_tokens);
    EXPECT_LE(scheduler_.running(), limits_.max_running);
    EXPECT_LE(memory_.used(), blocks_);
    EXPECT_EQ(scheduler_.running(), static_cast<int64_t>(memory_.entries()));
    EXPECT_EQ(scheduler_.running() + scheduler_.waiting(), static_cast<int64_t>(entries_.size()));
    const Expected* first = first_running();
    const bool any_free = std::any_of(entries_.begin(), entries_.end(),
                                      [](const auto& entry) { return !entry.second.paused; });
    EXPECT_EQ(first != nullptr, any_free) << "free entries, but none runs";
    if (first != nullptr) {
      EXPECT_EQ(ids.count(first->entry.id), 1u) << "the first one stands still";
    }
    check_order(work, scored == limits_.scored_tokens);
  }

  // Nobody has more than a token of the step where one with a higher priority wants some and has
  // none, unless that one can't run: nobody is added to those that wait for memory.
  void check_order(std::span<const ScheduledWork> work, bool all_scored) {
    for (const auto& [id, wanting] : entries_) {
      const bool has = std::any_of(work.begin(), work.end(),
                                   [id = id](const auto& item) { return item.id == id; });
      if (has || wanting.paused || !scheduler_.is_running(id)) continue;
      if (wanting.entry.scored && all_scored) continue;
      for (const ScheduledWork& item : work) {
        EXPECT_FALSE(item.count > 1 && comes_before(wanting, entries_.at(item.id)))
            << item.id << " has tokens that " << id << " lacks";
      }
    }
  }

  std::mt19937_64 random_;
  SchedulerLimits limits_;
  int64_t blocks_;
  SimulatedMemory memory_;
  Scheduler scheduler_;
  std::map<EntryId, Expected> entries_;
  EntryId last_id_ = 0;
};

TEST(Scheduler, ManyRandomSteps) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const SchedulerLimits limits{.step_tokens = 1 + static_cast<int64_t>(random() % 300),
                                 .max_running = 1 + static_cast<int64_t>(random() % 20),
                                 .scored_tokens = 1 + static_cast<int64_t>(random() % 60)};
    RandomRun run(seed, limits, 2 + static_cast<int64_t>(random() % 30));
    run.steps(2000);
    run.drain();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

// Computes a plan's work and samples where it goes to the end; the tokens of each entry.
std::map<EntryId, int64_t> run_step(Scheduler& scheduler, SimulatedMemory& memory) {
  std::map<EntryId, int64_t> counts;
  const auto work = scheduler.plan(memory);
  const std::vector<ScheduledWork> items(work.begin(), work.end());
  for (const ScheduledWork& item : items) {
    counts[item.id] = item.count;
    memory.compute(item.id, item.count);
    scheduler.done(item.id, item.to_the_end);
  }
  return counts;
}

SchedulerEntry entry(EntryId id, int64_t tokens, int priority = 0) {
  return {.id = id, .priority = priority, .arrival = id, .tokens = tokens};
}

TEST(Scheduler, TokensComeBeforeChunksOfPrompts) {
  SimulatedMemory memory(1000);
  Scheduler scheduler({.step_tokens = 100, .max_running = 8});
  scheduler.add(entry(1, 500));
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 100}}));
  scheduler.add(entry(2, 10));
  for (int i = 0; i < 4; ++i) run_step(scheduler, memory);
  // 1 has its prompt and decodes; 2 had to wait for tokens of a step.
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 1}, {2, 10}}));
  scheduler.add(entry(3, 300));
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 1}, {2, 1}, {3, 98}}));
}

// Whoever works on a plan adds the other choices of a request whose prompt is done.
TEST(Scheduler, APlanStaysWhileEntriesAreAdded) {
  SimulatedMemory memory(1000);
  Scheduler scheduler({.step_tokens = 100, .max_running = 8});
  scheduler.add(entry(1, 10));
  const auto work = scheduler.plan(memory);
  ASSERT_EQ(work.size(), 1u);
  for (EntryId id = 2; id < 100; ++id) scheduler.add(entry(id, 10));
  EXPECT_EQ(work[0].id, 1);  // a sanitizer sees whether it is still there
  EXPECT_EQ(work[0].count, 10);
  memory.compute(1, 10);
  scheduler.done(1, true);
  EXPECT_EQ(run_step(scheduler, memory).size(), 8u);
}

// Two hold all blocks and need one more each: one gives way, both end.
TEST(Scheduler, TwoThatNeedMoreThanThereIsBothEnd) {
  SimulatedMemory memory(7);
  Scheduler scheduler({.step_tokens = 512, .max_running = 8});
  scheduler.add(entry(1, 4 * block));
  scheduler.add(entry(2, 3 * block - 1));
  EXPECT_EQ(run_step(scheduler, memory).size(), 2u);
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 1}}));
  EXPECT_THAT(scheduler.preempted(), testing::ElementsAre(2));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(run_step(scheduler, memory).count(1), 1u);
  scheduler.remove(1, memory);
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{2, 3 * block}}));
}

TEST(Scheduler, NobodyOvertakesOneThatWaitsForMemory) {
  SimulatedMemory memory(10);
  Scheduler scheduler({.step_tokens = 1000, .max_running = 8});
  scheduler.add(entry(1, 5 * block));
  scheduler.add(entry(2, 6 * block));
  scheduler.add(entry(3, 1));
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 5 * block}}));
  scheduler.remove(1, memory);
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{2, 6 * block}, {3, 1}}));
}

TEST(Scheduler, ALowerPriorityGivesWayToOneThatArrives) {
  SimulatedMemory memory(10);
  Scheduler scheduler({.step_tokens = 1000, .max_running = 1});
  scheduler.add(entry(1, 100, 1));
  EXPECT_EQ(run_step(scheduler, memory).count(1), 1u);
  scheduler.add(entry(2, 100, 1));  // equal: waits
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 1}}));
  scheduler.add(entry(3, 100, 0));
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{3, 100}}));
  EXPECT_THAT(scheduler.preempted(), testing::ElementsAre(1));
}

TEST(Scheduler, ThePausedLoseTheirMemoryFirst) {
  SimulatedMemory memory(4);
  Scheduler scheduler({.step_tokens = 1000, .max_running = 8});
  scheduler.add(entry(1, block));
  scheduler.add(entry(2, 2 * block));
  EXPECT_EQ(run_step(scheduler, memory).size(), 2u);
  scheduler.set_paused(1, true);
  EXPECT_EQ(scheduler.paused(), 1);
  for (int i = 0; i < static_cast<int>(2 * block); ++i) {
    EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{2, 1}})) << i;
  }
  EXPECT_FALSE(scheduler.is_running(1));
  scheduler.set_paused(1, false);
  scheduler.remove(2, memory);
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, block + 1}}));
}

TEST(Scheduler, WhatNeverFitsIsNamed) {
  SimulatedMemory memory(2);
  Scheduler scheduler({.step_tokens = 100, .max_running = 8});
  scheduler.add(entry(1, 3 * block));
  EXPECT_TRUE(scheduler.plan(memory).empty());
  EXPECT_EQ(scheduler.hopeless(), EntryId{1});
}

TEST(Scheduler, OfThoseBehindTheLastOneGivesWay) {
  SimulatedMemory memory(3);
  Scheduler scheduler({.step_tokens = 1000, .max_running = 8});
  for (const auto& one : {entry(1, block), entry(2, 1), entry(3, 1)}) scheduler.add(one);
  EXPECT_EQ(run_step(scheduler, memory).size(), 3u);
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 1}, {2, 1}}));
  EXPECT_THAT(scheduler.preempted(), testing::ElementsAre(3));
}

TEST(Scheduler, TokensOfOneThatGaveWayGoToOthers) {
  SimulatedMemory memory(4);
  Scheduler scheduler({.step_tokens = block, .max_running = 8});
  scheduler.add(entry(2, block, 1));
  run_step(scheduler, memory);
  scheduler.add(entry(1, 3 * block, 0));
  // 2 was to have a token of the step, and the room for it, when 1 turns out to need that room.
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, block}}));
  EXPECT_THAT(scheduler.preempted(), testing::ElementsAre(2));
}

TEST(Scheduler, WhatRunningOnesStillNeedIsNotGivenAway) {
  SimulatedMemory memory(10);
  Scheduler scheduler({.step_tokens = 1000, .max_running = 8, .scored_tokens = 10});
  SchedulerEntry slow = entry(1, 8 * block);
  slow.scored = true;
  scheduler.add(slow);
  run_step(scheduler, memory);
  scheduler.add(entry(2, 3 * block));
  for (int i = 0; i < 8; ++i) run_step(scheduler, memory);
  EXPECT_FALSE(scheduler.is_running(2));
  scheduler.remove(2, memory);
  scheduler.add(entry(3, block));
  run_step(scheduler, memory);
  EXPECT_TRUE(scheduler.is_running(3));
}

// Together, not each: the first has what it takes, the second what is left, the others wait.
TEST(Scheduler, ScoredTokensOfAStepAreBounded) {
  SimulatedMemory memory(100);
  Scheduler scheduler({.step_tokens = 1000, .max_running = 8, .scored_tokens = 10});
  for (EntryId id = 1; id <= 3; ++id) {
    SchedulerEntry scored = entry(id, 8);
    scored.scored = true;
    scheduler.add(scored);
  }
  scheduler.add(entry(4, 50));
  using Step = std::map<EntryId, int64_t>;
  EXPECT_EQ(run_step(scheduler, memory), (Step{{1, 8}, {2, 2}, {4, 50}}));
  for (const EntryId id : {1, 4}) scheduler.remove(id, memory);
  EXPECT_EQ(run_step(scheduler, memory), (Step{{2, 6}, {3, 4}}));
  scheduler.set_scored(2, false);  // its prompt is done
  EXPECT_EQ(run_step(scheduler, memory), (Step{{2, 1}, {3, 4}}));
}

// Runs steps until `id` is in one; how many, or 1000.
int steps_until(EntryId id, Scheduler& scheduler, SimulatedMemory& memory) {
  for (int steps = 1; steps < 1000; ++steps) {
    if (run_step(scheduler, memory).count(id) == 1) return steps;
  }
  return 1000;
}

TEST(Scheduler, OneThatIsUrgentDoesNotWaitForALongPrompt) {
  SimulatedMemory memory(1000);
  Scheduler scheduler({.step_tokens = 100, .max_running = 4});
  scheduler.add(entry(1, 10'000, 5));
  run_step(scheduler, memory);
  scheduler.add(entry(2, 250, 0));
  scheduler.add(entry(3, 250, 5));  // as urgent as the first: waits
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{2, 100}}));
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{2, 100}}));
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 50}, {2, 50}}));
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 99}, {2, 1}}));
  EXPECT_TRUE(scheduler.is_running(1));
}

// Single tokens fill every step.
TEST(Scheduler, OneThatIsUrgentDoesNotWaitForSingleTokens) {
  for (const int64_t max_running : {4, 8}) {
    SimulatedMemory memory(1000);
    Scheduler scheduler({.step_tokens = 4, .max_running = max_running});
    for (EntryId id = 1; id <= 4; ++id) scheduler.add(entry(id, 1, 5));
    EXPECT_EQ(run_step(scheduler, memory).size(), 4u);
    scheduler.add(entry(9, 1, 0));
    scheduler.add(entry(10, 3, 0));
    EXPECT_EQ(steps_until(9, scheduler, memory), 1);
    EXPECT_LE(steps_until(10, scheduler, memory), 2);
    for (int i = 0; i < 3; ++i) {
      const auto counts = run_step(scheduler, memory);
      EXPECT_EQ(counts.size(), 4u);
      EXPECT_EQ(counts.count(9) + counts.count(10), 2u);
    }
  }
}

// What is held back for one that then finds no memory goes to those behind it.
TEST(Scheduler, NoTokenOfAStepIsLeftWhereSomebodyCouldUseIt) {
  SimulatedMemory memory(8);
  Scheduler scheduler({.step_tokens = 4, .max_running = 8});
  for (EntryId id = 1; id <= 4; ++id) scheduler.add(entry(id, 1));
  EXPECT_EQ(run_step(scheduler, memory).size(), 4u);
  scheduler.add({.id = 9, .priority = 0, .arrival = 0, .tokens = 7 * block});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(run_step(scheduler, memory).size(), 4u);
  EXPECT_FALSE(scheduler.is_running(9));
}

// Where room is refused that was there by all that is known, one that runs alone must not stand
// still for ever either.
TEST(Scheduler, OneThatRunsAloneWithoutRoomIsNamed) {
  class Refusing final : public SequenceMemory {
   public:
    std::optional<int64_t> start(EntryId, int64_t, int64_t) override { return 0; }
    bool reserve(EntryId, int64_t, int64_t) override { return false; }
    void release(EntryId) override {}
  } memory;
  Scheduler scheduler({.step_tokens = 100, .max_running = 8});
  for (const auto& one : {entry(1, 10), entry(2, 10)}) scheduler.add(one);
  scheduler.set_paused(2, true);
  EXPECT_TRUE(scheduler.plan(memory).empty());
  EXPECT_EQ(scheduler.hopeless(), EntryId{1});
}

TEST(Scheduler, CopiesRunAtOnce) {
  SimulatedMemory memory(10);
  Scheduler scheduler({.step_tokens = 100, .max_running = 2});
  scheduler.add(entry(1, 10));
  run_step(scheduler, memory);
  EXPECT_TRUE(scheduler.can_run_more());
  ASSERT_TRUE(memory.start(2, 10, 0).has_value());
  ASSERT_TRUE(memory.reserve(2, 0, 10));
  memory.compute(2, 10);
  scheduler.add(entry(2, 11));
  scheduler.set_running(2, 10);
  EXPECT_FALSE(scheduler.can_run_more());
  EXPECT_EQ(run_step(scheduler, memory), (std::map<EntryId, int64_t>{{1, 1}, {2, 1}}));
}

}  // namespace
}  // namespace kvart
