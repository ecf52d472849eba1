// A fixed set of threads that run numbered tasks. Which thread runs a task never changes a result:
// tasks write to places of their own and reductions are done in task order by the caller.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace kvart {

// Refers to something that is called as task(index, thread), for as long as a run lasts. Unlike a
// std::function it never takes memory.
class TaskRef {
 public:
  template <class Task>
  TaskRef(const Task& task)
      : task_(&task), call_([](const void* t, int index, int thread) {
          (*static_cast<const Task*>(t))(index, thread);
        }) {}
  void operator()(int index, int thread) const { call_(task_, index, thread); }

 private:
  const void* task_;
  void (*call_)(const void*, int, int);
};

class ThreadPool {
 public:
  // threads >= 1; the calling thread is one of them. Where the system refuses to make so many, the
  // pool has fewer.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(index, thread) for each index in [0, count), thread in [0, threads()), and returns
  // when all are done. Not re-entrant: a task never calls run.
  void run(int count, TaskRef task);

 private:
  void work(int thread);
  void drain(int thread);

  int looks_before_yield_ = 0;  // for work, or for its end
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const TaskRef* task_ = nullptr;
  int count_ = 0;
  std::atomic<int> next_ = 0;
  std::atomic<int> busy_ = 0;
  std::atomic<unsigned> round_ = 0;
  std::atomic<bool> stop_ = false;
};

}  // namespace kvart
