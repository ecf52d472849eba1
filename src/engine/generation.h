// GenerationState: where the engine's thread leaves a request's output and its reader takes it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kvart/engine.h"

namespace kvart {

// Wakes the engine's thread. Outlives the engine as long as somebody may call it.
class Waker {
 public:
  void wake();
  // Waits until somebody has called wake() since the last return, or until `until`.
  void wait_until(std::chrono::steady_clock::time_point until);

 private:
  std::mutex mutex_;
  std::condition_variable called_;
  bool awake_ = false;
};

class GenerationState {
 public:
  GenerationState(size_t choices, int64_t prompt_tokens, int64_t output_tokens_max,
                  std::function<void()> notify, std::shared_ptr<Waker> waker);

  // For the reader.
  GenerationOutput take();
  void cancel();
  [[nodiscard]] GenerationUsage usage() const;

  // For the engine's thread.
  void add(ChoiceOutput&& output, int64_t sampled_tokens);
  void add_prompt_scores(std::vector<ScoredToken> scores);
  void set_cached(int64_t tokens);
  void count_preemption();
  // Why it is going to end with FinishReason::error: said before any choice ends with that.
  void set_error(const Status& error);
  // The request has ended.
  void finish();
  [[nodiscard]] bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // More of a choice lies here than a reader may leave.
  [[nodiscard]] bool is_full(int choice) const;

 private:
  void notify_if_new(bool had_nothing);
  [[nodiscard]] bool has_nothing() const;  // with mutex_ held

  std::function<void()> notify_;
  std::shared_ptr<Waker> waker_;
  int64_t output_tokens_max_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mutex_;
  // Below it: what was not taken yet.
  GenerationOutput output_;
  std::vector<int64_t> untaken_tokens_;  // of each choice
  GenerationUsage usage_;
};

}  // namespace kvart
