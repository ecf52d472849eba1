// Scheduler: which sequences run in the next step, and with how many tokens. It knows numbers only,
// neither tokens nor logits; memory is asked through SequenceMemory.
//
// The order of entries is: those that run freely before paused ones, then by priority, then by
// arrival. The first of the running ones always runs: whoever comes behind it gives up its memory
// when that is needed. So every entry comes to its end, however small the memory is, as long as it
// holds one entry alone.
//
// A step's tokens go to single tokens first, one for each answer under way, then to chunks of
// prompts and to entries that wait, in their order: so one of a higher priority doesn't wait for a
// long prompt of a lower one. Single tokens can't fill a step before the first chunk either.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvart {

using EntryId = int64_t;

// The memory of sequences, as the scheduler sees it.
class SequenceMemory {
 public:
  virtual ~SequenceMemory() = default;
  // Finds what is cached of the entry's `tokens` tokens and holds on to it; the number of those,
  // fewer than `tokens`. Nothing, and nothing changed, if the rest of them and `promised` tokens of
  // others don't fit.
  virtual std::optional<int64_t> start(EntryId entry, int64_t tokens, int64_t promised) = 0;
  // Room for `count` tokens behind the first `computed` of a started entry; false: nothing changed.
  virtual bool reserve(EntryId entry, int64_t computed, int64_t count) = 0;
  // Gives up all that a started entry holds, reserved room included.
  virtual void release(EntryId entry) = 0;
};

struct SchedulerLimits {
  int64_t step_tokens = 512;  // of a step, at least 1
  int64_t max_running = 32;   // entries that hold memory, at least 1
  // Of a step's tokens those of entries that are scored, at least 1: each has logits of its own.
  int64_t scored_tokens = 512;
};

struct SchedulerEntry {
  EntryId id = 0;
  int priority = 0;     // lower first
  int64_t arrival = 0;  // lower first; unique
  int64_t tokens = 0;   // known so far, at least 1: prompt and sampled ones
  bool scored = false;  // see SchedulerLimits::scored_tokens
};

// What one entry does in a step.
struct ScheduledWork {
  EntryId id = 0;
  int64_t first = 0;  // place of the first token
  int64_t count = 0;
  bool to_the_end = false;  // its last known token is among them: the next one is to be sampled
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}

  // Takes all the memory that plan() needs for it, and may throw std::bad_alloc: then nothing has
  // changed. Nothing else here needs any.
  void add(const SchedulerEntry& entry);
  // An entry that waits has its first `computed` tokens in memory after all. Precondition:
  // can_run_more().
  void set_running(EntryId id, int64_t computed);
  [[nodiscard]] bool can_run_more() const;
  // Ends an entry. Its memory is released if it holds any. Idempotent.
  void remove(EntryId id, SequenceMemory& memory);
  // A paused entry doesn't run, and is the first to lose its memory.
  void set_paused(EntryId id, bool paused);

  // Changes SchedulerEntry::scored.
  void set_scored(EntryId id, bool scored) { get(id).entry.scored = scored; }

  // The next step. Room for its tokens is reserved. Empty: nothing can run. The span is valid until
  // the next call of this function, whatever is added or done.
  std::span<const ScheduledWork> plan(SequenceMemory& memory);
  // The work of the last plan was done; a token was sampled if it went to the end and `sampled`.
  void done(EntryId id, bool sampled);

  [[nodiscard]] int64_t running() const { return count(State::running); }
  [[nodiscard]] int64_t waiting() const { return count(State::waiting); }
  [[nodiscard]] int64_t paused() const;
  [[nodiscard]] bool is_running(EntryId id) const;
  // Entries that lost their memory in the last plan(), in that order: valid until the next add().
  [[nodiscard]] std::span<const EntryId> preempted() const { return preempted_; }
  // Entries that got memory in the last plan(), likewise.
  [[nodiscard]] std::span<const EntryId> admitted() const { return admitted_; }
  // An entry that the last plan() found no room for though nothing else holds memory: it will never
  // run. Others may be able to, once it is removed.
  [[nodiscard]] std::optional<EntryId> hopeless() const { return hopeless_; }

 private:
  enum class State : uint8_t { waiting, running };
  struct Item {
    SchedulerEntry entry;
    State state = State::waiting;
    bool paused = false;
    int64_t computed = 0;
    int64_t planned = 0;  // tokens in this step

    [[nodiscard]] int64_t remaining() const { return entry.tokens - computed; }
    // A token after the prompt, or the prompt's last one.
    [[nodiscard]] bool is_single() const { return remaining() == 1 && !entry.scored; }
  };

  [[nodiscard]] static bool before(const Item& a, const Item& b);
  [[nodiscard]] int64_t count(State state) const;
  void put_in_order();
  Item& get(EntryId id);
  void give_single_tokens(bool hold_back, SequenceMemory& memory);
  void give_chunks(SequenceMemory& memory);
  void give(Item& item, int64_t count, SequenceMemory& memory);
  bool reserve(Item& item, int64_t count, SequenceMemory& memory);
  // The last of the running ones that comes behind `item`; or, with `lower_priority`, of those with
  // a priority below that of the item, which waits.
  Item* victim_for(const Item& item, bool lower_priority);
  void preempt(Item& item, SequenceMemory& memory);
  bool admit(Item& item, SequenceMemory& memory);
  void find_stuck();
  [[nodiscard]] bool start(Item& item, SequenceMemory& memory);
  [[nodiscard]] int64_t promised() const;

  SchedulerLimits limits_;
  std::unordered_map<EntryId, Item> items_;
  std::vector<Item*> order_;  // of the last plan
  std::vector<ScheduledWork> work_;
  // Room for the next plan, since whoever works on this one may add entries: empty.
  std::vector<ScheduledWork> next_work_;
  std::vector<EntryId> preempted_;
  std::vector<EntryId> admitted_;
  std::optional<EntryId> hopeless_;
  int64_t left_ = 0;         // tokens of the step that nobody has yet
  int64_t scored_left_ = 0;  // and of the scored ones
  bool blocked_ = false;     // an entry has to go on waiting, and so have those behind it
};

}  // namespace kvart
