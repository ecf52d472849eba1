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
  // Ends all choices that have not ended. error: why, for FinishReason::error. Needs no memory.
  void end_rest(FinishReason reason, Status error);
  // The request has ended. Needs no memory.
  void finish();
  // The reader could not be told of something new, for want of memory: tells it again. False: it
  // still can't be.
  bool tell_again();
  [[nodiscard]] bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // More of a choice lies here than a reader may leave.
  [[nodiscard]] bool is_full(int choice) const;

 private:
  void notify_if_new(bool had_nothing);
  // With mutex_ held:
  [[nodiscard]] bool has_nothing() const;
  ChoiceOutput& output_of(int choice);
  void hand_out_ends();

  std::function<void()> notify_;
  std::shared_ptr<Waker> waker_;
  int64_t output_tokens_max_;
  std::atomic<bool> cancelled_{false};
  bool owes_notify_ = false;  // of the engine's thread
  mutable std::mutex mutex_;
  // Below it: what was not taken yet.
  GenerationOutput output_;
  std::vector<int64_t> untaken_tokens_;     // of each choice
  std::vector<bool> ended_;                 // of each choice, as far as the reader can know
  FinishReason rest_ = FinishReason::none;  // of the choices that haven't; take() says so
  GenerationUsage usage_;
};

}  // namespace kvart
