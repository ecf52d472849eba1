// The workers' loop: spin for a moment, then sleep until the next round of tasks.
#include "base/thread_pool.h"

#include <system_error>

#include "base/check.h"
#include "kvart/cores.h"

namespace kvart {

namespace {
// A decode step has hundreds of short parallel regions: spin this long before sleeping. With more
// threads than cores, who spins keeps another from the work that he waits for.
constexpr int spins_before_sleep = 20000;
constexpr int spins_when_crowded = 50;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}
}  // namespace

ThreadPool::ThreadPool(int threads) {
  KVART_CHECK(threads >= 1, "threads %d", threads);
  spins_ = threads > usable_cores() ? spins_when_crowded : spins_before_sleep;
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

void ThreadPool::run(int count, const std::function<void(int, int)>& task) {
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
  int spins = 0;
  while (busy_.load(std::memory_order_acquire) != 0) {
    pause_cpu();
    if (++spins > spins_) std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  unsigned seen = 0;
  for (;;) {
    int spins = 0;
    while (round_.load(std::memory_order_acquire) == seen && !stop_.load() && ++spins < spins_) {
      pause_cpu();
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
