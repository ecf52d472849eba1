// Scheduler: decodes first, then chunks of prompts, then new entries.
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
  const bool added = items_.emplace(entry.id, Item{.entry = entry}).second;
  KVART_CHECK(added, "entry %lld twice", static_cast<long long>(entry.id));
}

void Scheduler::add_running(const SchedulerEntry& entry, int64_t computed) {
  KVART_CHECK(can_run_more() && computed <= entry.tokens, "entry %lld of %lld tokens",
              static_cast<long long>(entry.id), static_cast<long long>(entry.tokens));
  add(entry);
  Item& item = get(entry.id);
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
  work_.clear();
  preempted_.clear();
  admitted_.clear();
  hopeless_.reset();
  left_ = limits_.step_tokens;
  for (auto& [id, item] : items_) item.planned = 0;
  const std::vector<Item*> order = in_order(State::running);
  // A sequence that waits for one token keeps its reader waiting for the whole step, so those come
  // before the chunks of prompts that would fill it.
  for (const bool prompts : {false, true}) {
    for (Item* item : order) {
      if (item->state != State::running || item->paused || item->remaining() == 0) continue;
      if ((item->remaining() > 1) == prompts) give(*item, item->remaining(), memory);
    }
  }
  admit(memory);
  return work_;
}

// Up to `count` tokens of the step for an entry that is running.
void Scheduler::give(Item& item, int64_t count, SequenceMemory& memory) {
  count = std::min(count, left_);
  if (item.entry.chunk_max > 0) count = std::min(count, item.entry.chunk_max);
  if (count == 0) return;
  if (!reserve(item, count, memory)) return;
  item.planned = count;
  left_ -= count;
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

// Waiting entries in order, until one has to go on waiting: those behind it don't overtake, or one
// that needs much would never get it.
void Scheduler::admit(SequenceMemory& memory) {
  for (Item* item : in_order(State::waiting)) {
    if (item->paused || left_ == 0) return;
    while (!start(*item, memory)) {
      Item* victim = victim_for(*item, true);
      if (victim == nullptr) {
        if (running() == 0) hopeless_ = item->entry.id;
        return;
      }
      preempt(*victim, memory);
    }
    admitted_.push_back(item->entry.id);
    give(*item, item->remaining(), memory);
  }
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

std::vector<Scheduler::Item*> Scheduler::in_order(State state) {
  std::vector<Item*> order;
  for (auto& [id, item] : items_) {
    if (item.state == state) order.push_back(&item);
  }
  std::sort(order.begin(), order.end(),
            [](const Item* a, const Item* b) { return before(*a, *b); });
  return order;
}

Scheduler::Item& Scheduler::get(EntryId id) {
  const auto found = items_.find(id);
  KVART_CHECK(found != items_.end(), "no entry %lld", static_cast<long long>(id));
  return found->second;
}

}  // namespace kvart
