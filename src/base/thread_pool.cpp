// The workers' loop: spin for a moment, then sleep until the next round of tasks.
#include "base/thread_pool.h"

#include <system_error>

#include "base/check.h"
#include "kvart/cores.h"

namespace kvart {

namespace {
// A decode step has hundreds of short parallel regions: a thread looks this often before it sleeps.
// It pauses between the first looks and then yields: where other programs, or threads of its own,
// want the cores, who only looks keeps others from the work that he waits for.
constexpr int looks_before_sleep = 4000;
constexpr int looks_before_yield = 400;
constexpr int looks_before_yield_when_crowded = 50;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Between two looks; look: how many there were.
void wait_a_moment(int look, int before_yield) {
  if (look < before_yield) {
    pause_cpu();
  } else {
    std::this_thread::yield();
  }
}
}  // namespace

ThreadPool::ThreadPool(int threads) {
  KVART_CHECK(threads >= 1, "threads %d", threads);
  looks_before_yield_ =
      threads > usable_cores() ? looks_before_yield_when_crowded : looks_before_yield;
  workers_.reserve(static_cast<size_t>(threads) - 1);
  for (int i = 1; i < threads; ++i) {
    try {
      workers_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error&) {
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::drain(int thread) {
  for (int i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) (*task_)(i, thread);
}

void ThreadPool::run(int count, TaskRef task) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    for (int i = 0; i < count; ++i) task(i, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    task_ = &task;
    count_ = count;
    next_.store(0);
    busy_.store(static_cast<int>(workers_.size()));
    round_.fetch_add(1);
  }
  wake_.notify_all();
  drain(0);
  for (int look = 0; busy_.load(std::memory_order_acquire) != 0;) {
    wait_a_moment(look, looks_before_yield_);
    if (look < looks_before_yield_) ++look;
  }
}

void ThreadPool::work(int thread) {
  unsigned seen = 0;
  for (;;) {
    for (int look = 0; look < looks_before_sleep; ++look) {
      if (round_.load(std::memory_order_acquire) != seen || stop_.load()) break;
      wait_a_moment(look, looks_before_yield_);
    }
    if (round_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_.load() || round_.load() != seen; });
    }
    if (stop_.load()) return;
    seen = round_.load(std::memory_order_acquire);
    drain(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace kvart
