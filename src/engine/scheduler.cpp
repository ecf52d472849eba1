// Scheduler: single tokens first, then chunks of prompts and new entries in their order.
#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace kvart {

bool Scheduler::before(const Item& a, const Item& b) {
  if (a.paused != b.paused) return b.paused;
  if (a.entry.priority != b.entry.priority) return a.entry.priority < b.entry.priority;
  return a.entry.arrival < b.entry.arrival;
}

void Scheduler::add(const SchedulerEntry& entry) {
  KVART_CHECK(entry.tokens > 0, "entry %lld has no tokens", static_cast<long long>(entry.id));
  const size_t items = items_.size() + 1;
  if (order_.capacity() < items) {
    // By a factor, so that adding one by one stays cheap. An entry gets memory in a step once, so
    // it loses it twice at most.
    order_.reserve(2 * items);
    next_work_.reserve(2 * items);
    admitted_.reserve(2 * items);
    preempted_.reserve(4 * items);
  }
  const bool added = items_.emplace(entry.id, Item{.entry = entry}).second;
  KVART_CHECK(added, "entry %lld twice", static_cast<long long>(entry.id));
}

void Scheduler::set_running(EntryId id, int64_t computed) {
  Item& item = get(id);
  KVART_CHECK(can_run_more() && item.state == State::waiting && computed <= item.entry.tokens,
              "entry %lld of %lld tokens", static_cast<long long>(id),
              static_cast<long long>(item.entry.tokens));
  item.state = State::running;
  item.computed = computed;
}

bool Scheduler::can_run_more() const {
  return running() < limits_.max_running;
}

void Scheduler::remove(EntryId id, SequenceMemory& memory) {
  const auto found = items_.find(id);
  if (found == items_.end()) return;
  if (found->second.state == State::running) memory.release(id);
  items_.erase(found);
}

void Scheduler::set_paused(EntryId id, bool paused) {
  get(id).paused = paused;
}

std::span<const ScheduledWork> Scheduler::plan(SequenceMemory& memory) {
  if (work_.capacity() < next_work_.capacity()) work_.swap(next_work_);
  work_.clear();
  preempted_.clear();
  admitted_.clear();
  hopeless_.reset();
  blocked_ = false;
  left_ = limits_.step_tokens;
  scored_left_ = limits_.scored_tokens;
  for (auto& [id, item] : items_) item.planned = 0;
  put_in_order();
  give_single_tokens(true, memory);
  give_chunks(memory);
  // What was held back for a chunk that found no room.
  give_single_tokens(false, memory);
  if (work_.empty() && !hopeless_) find_stuck();
  return work_;
}

// A sequence that waits for one token keeps its reader waiting for the whole step, so those come
// before the chunks of prompts that would fill it. `hold_back`: those behind the first chunk leave
// it a token, or they could fill all steps before it.
void Scheduler::give_single_tokens(bool hold_back, SequenceMemory& memory) {
  int64_t held_back = 0;
  for (Item* item : order_) {
    if (item->paused || item->planned > 0) continue;
    if (item->state == State::waiting || (item->remaining() > 0 && !item->is_single())) {
      if (hold_back && !(item->state == State::waiting && blocked_)) held_back = 1;
    } else if (item->is_single() && left_ > held_back) {
      give(*item, 1, memory);
    }
  }
}

// Chunks of prompts, new entries among them. Of those that wait nobody overtakes one that has to go
// on waiting, or one that needs much would never get it.
void Scheduler::give_chunks(SequenceMemory& memory) {
  for (Item* item : order_) {
    if (item->paused) continue;
    if (left_ == 0) return;
    if (item->state == State::running) {
      if (!item->is_single()) give(*item, item->remaining(), memory);
    } else if (!blocked_ && !admit(*item, memory)) {
      blocked_ = true;
      give_single_tokens(true, memory);  // what was held back for it
    }
  }
}

bool Scheduler::admit(Item& item, SequenceMemory& memory) {
  while (!start(item, memory)) {
    Item* victim = victim_for(item, true);
    if (victim == nullptr) {
      if (running() == 0) hopeless_ = item.entry.id;
      return false;
    }
    preempt(*victim, memory);
  }
  admitted_.push_back(item.entry.id);
  give(item, item.remaining(), memory);
  return true;
}

// The first that runs freely and yet found no room: those behind it have given theirs up.
void Scheduler::find_stuck() {
  for (const Item* item : order_) {
    if (item->state != State::running || item->paused || item->remaining() == 0) continue;
    hopeless_ = item->entry.id;
    return;
  }
}

// Up to `count` tokens of the step for an entry that is running.
void Scheduler::give(Item& item, int64_t count, SequenceMemory& memory) {
  count = std::min(count, left_);
  if (item.entry.scored) count = std::min(count, scored_left_);
  if (count == 0) return;
  if (!reserve(item, count, memory)) return;
  item.planned = count;
  left_ -= count;
  if (item.entry.scored) scored_left_ -= count;
  work_.push_back({item.entry.id, item.computed, count, count == item.remaining()});
}

bool Scheduler::reserve(Item& item, int64_t count, SequenceMemory& memory) {
  while (!memory.reserve(item.entry.id, item.computed, count)) {
    Item* victim = victim_for(item, false);
    if (victim == nullptr) return false;
    preempt(*victim, memory);
  }
  return true;
}

Scheduler::Item* Scheduler::victim_for(const Item& item, bool lower_priority) {
  Item* last = nullptr;
  for (auto& [id, other] : items_) {
    if (other.state != State::running || &other == &item) continue;
    const bool behind = lower_priority ? other.paused || other.entry.priority > item.entry.priority
                                       : before(item, other);
    if (behind && (last == nullptr || before(*last, other))) last = &other;
  }
  return last;
}

void Scheduler::preempt(Item& item, SequenceMemory& memory) {
  memory.release(item.entry.id);
  if (item.planned > 0) {
    std::erase_if(work_, [&](const ScheduledWork& work) { return work.id == item.entry.id; });
    left_ += item.planned;
    if (item.entry.scored) scored_left_ += item.planned;
  }
  item.state = State::waiting;
  item.planned = 0;
  preempted_.push_back(item.entry.id);
}

int64_t Scheduler::promised() const {
  int64_t tokens = 0;
  for (const auto& [id, item] : items_) {
    if (item.state == State::running) tokens += item.remaining() - item.planned;
  }
  return tokens;
}

bool Scheduler::start(Item& item, SequenceMemory& memory) {
  if (!can_run_more()) return false;
  const auto cached = memory.start(item.entry.id, item.entry.tokens, promised());
  if (!cached) return false;
  item.state = State::running;
  item.computed = *cached;
  return true;
}

void Scheduler::done(EntryId id, bool sampled) {
  Item& item = get(id);
  KVART_CHECK(item.planned > 0, "entry %lld was not in the step", static_cast<long long>(id));
  item.computed += item.planned;
  item.planned = 0;
  if (sampled) item.entry.tokens += 1;
}

int64_t Scheduler::count(State state) const {
  return std::count_if(items_.begin(), items_.end(),
                       [&](const auto& entry) { return entry.second.state == state; });
}

int64_t Scheduler::paused() const {
  return std::count_if(items_.begin(), items_.end(), [](const auto& entry) {
    return entry.second.paused && entry.second.state == State::running;
  });
}

bool Scheduler::is_running(EntryId id) const {
  const auto found = items_.find(id);
  return found != items_.end() && found->second.state == State::running;
}

void Scheduler::put_in_order() {
  order_.clear();
  for (auto& [id, item] : items_) order_.push_back(&item);
  std::sort(order_.begin(), order_.end(),
            [](const Item* a, const Item* b) { return before(*a, *b); });
}

Scheduler::Item& Scheduler::get(EntryId id) {
  const auto found = items_.find(id);
  KVART_CHECK(found != items_.end(), "no entry %lld", static_cast<long long>(id));
  return found->second;
}

}  // namespace kvart
