// GenerationState: output is joined until it is taken.
#include "engine/generation.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace kvart {

void Waker::wake() {
  {
    const std::lock_guard lock(mutex_);
    awake_ = true;
  }
  called_.notify_one();
}

void Waker::wait_until(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  called_.wait_until(lock, until, [&] { return awake_; });
  awake_ = false;
}

GenerationState::GenerationState(size_t choices, int64_t prompt_tokens, int64_t output_tokens_max,
                                 std::function<void()> notify, std::shared_ptr<Waker> waker)
    : notify_(std::move(notify)),
      waker_(std::move(waker)),
      output_tokens_max_(output_tokens_max),
      untaken_tokens_(choices),
      ended_(choices) {
  usage_.prompt_tokens = prompt_tokens;
}

GenerationOutput GenerationState::take() {
  GenerationOutput taken;
  bool was_full = false;
  {
    const std::lock_guard lock(mutex_);
    if (rest_ != FinishReason::none) hand_out_ends();
    std::swap(taken, output_);
    // What has ended stays known.
    output_.finished = taken.finished;
    output_.error = taken.error;
    for (int64_t& tokens : untaken_tokens_) {
      was_full = was_full || tokens > output_tokens_max_;
      tokens = 0;
    }
  }
  if (was_full) waker_->wake();
  return taken;
}

void GenerationState::cancel() {
  if (cancelled_.exchange(true)) return;
  waker_->wake();
}

GenerationUsage GenerationState::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

bool GenerationState::has_nothing() const {
  return output_.choices.empty() && output_.prompt_scores.empty() && rest_ == FinishReason::none;
}

ChoiceOutput& GenerationState::output_of(int choice) {
  for (ChoiceOutput& output : output_.choices) {
    if (output.choice == choice) return output;
  }
  ChoiceOutput& added = output_.choices.emplace_back();
  added.choice = choice;
  return added;
}

// Here, as the reader's thread may fail for want of memory: then it tries again.
void GenerationState::hand_out_ends() {
  output_.choices.reserve(ended_.size());
  for (size_t i = 0; i < ended_.size(); ++i) {
    if (!ended_[i]) output_of(static_cast<int>(i)).finish = rest_;
    ended_[i] = true;
  }
  rest_ = FinishReason::none;
}

void GenerationState::notify_if_new(bool had_nothing) {
  if (!notify_ || !(had_nothing || owes_notify_)) return;
  try {
    notify_();
    owes_notify_ = false;
  } catch (const std::bad_alloc&) {
    owes_notify_ = true;
  }
}

bool GenerationState::tell_again() {
  notify_if_new(false);
  return !owes_notify_;
}

void GenerationState::add(ChoiceOutput&& output, int64_t sampled_tokens) {
  bool had_nothing = false;
  {
    const std::lock_guard lock(mutex_);
    usage_.completion_tokens += sampled_tokens;
    if (output.text.empty() && output.tokens.empty() && output.finish == FinishReason::none) return;
    had_nothing = has_nothing();
    const auto index = static_cast<size_t>(output.choice);
    untaken_tokens_[index] += static_cast<int64_t>(output.tokens.size());
    ChoiceOutput& all = output_of(output.choice);
    if (all.text.empty() && all.tokens.empty()) {
      all = std::move(output);
    } else {
      all.text += output.text;
      all.tokens.insert(all.tokens.end(), output.tokens.begin(), output.tokens.end());
      std::move(output.scores.begin(), output.scores.end(), std::back_inserter(all.scores));
      all.finish = output.finish;
      all.stop_text = std::move(output.stop_text);
      all.stop_token = output.stop_token;
    }
    ended_[index] = all.finish != FinishReason::none;
  }
  notify_if_new(had_nothing);
}

void GenerationState::add_prompt_scores(std::vector<ScoredToken> scores) {
  bool had_nothing = false;
  {
    const std::lock_guard lock(mutex_);
    had_nothing = has_nothing();
    output_.prompt_scores = std::move(scores);
  }
  notify_if_new(had_nothing);
}

void GenerationState::set_cached(int64_t tokens) {
  const std::lock_guard lock(mutex_);
  usage_.cached_tokens = tokens;
}

void GenerationState::count_preemption() {
  const std::lock_guard lock(mutex_);
  usage_.preemptions += 1;
}

void GenerationState::end_rest(FinishReason reason, Status error) {
  bool had_nothing = false;
  {
    const std::lock_guard lock(mutex_);
    had_nothing = has_nothing();
    if (!error.ok()) output_.error = std::move(error);
    rest_ = reason;
  }
  notify_if_new(had_nothing);
}

void GenerationState::finish() {
  {
    const std::lock_guard lock(mutex_);
    output_.finished = true;
  }
  // Its last output may have been taken already.
  notify_if_new(true);
}

bool GenerationState::is_full(int choice) const {
  const std::lock_guard lock(mutex_);
  return untaken_tokens_[static_cast<size_t>(choice)] > output_tokens_max_;
}

}  // namespace kvart
