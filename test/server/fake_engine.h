// An engine without a model: every choice says the alphabet from its own number on, a letter a
// tick, until max_tokens. What it was asked and what became of it can be looked at.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kvart/engine.h"
#include "spared.h"

namespace kvart {

class FakeGeneration : public Generation {
 public:
  FakeGeneration(GenerationRequest request, std::function<void()> notify, int64_t untaken_max)
      : request_(std::move(request)), notify_(std::move(notify)), untaken_max_(untaken_max) {
    done_.resize(static_cast<size_t>(request_.choices), 0);
    untaken_.resize(done_.size(), 0);
    ended_.resize(done_.size(), false);
  }

  GenerationOutput take() override {
    const std::lock_guard lock(mutex_);
    std::fill(untaken_.begin(), untaken_.end(), 0);
    fresh_ = false;
    return std::exchange(output_, {});
  }
  void cancel() override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  [[nodiscard]] GenerationUsage usage() const override {
    const std::lock_guard lock(mutex_);
    GenerationUsage usage;
    usage.prompt_tokens = static_cast<int64_t>(request_.prompt.size());
    for (const int64_t done : done_) usage.completion_tokens += done;
    return usage;
  }

  // One letter of each choice. True: it has ended.
  bool tick() {
    std::unique_lock lock(mutex_);
    if (finished_) return true;
    if (!begun_ && request_.options.prompt_logprobs >= 0) score_prompt();
    begun_ = true;
    for (size_t i = 0; i < done_.size(); ++i) step(i);
    finished_ = std::all_of(ended_.begin(), ended_.end(), [](bool ended) { return ended; });
    output_.finished = finished_;
    const bool first = !std::exchange(fresh_, true);
    const bool finished = finished_;
    lock.unlock();
    if (first) notify_();
    return finished;
  }
  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    error_ = error;
    fails_ = true;
  }
  [[nodiscard]] bool cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  [[nodiscard]] int64_t said() const { return usage().completion_tokens; }
  const GenerationRequest& request() const { return request_; }

 private:
  void score_prompt() {
    for (const int32_t token : request_.prompt) {
      ScoredToken score{token, -0.5f, 2, {}};
      if (!output_.prompt_scores.empty()) score.top = {{'z', -0.25f}, {token, -0.5f}};
      output_.prompt_scores.push_back(std::move(score));
    }
  }
  ChoiceOutput& entry(size_t choice) {
    for (ChoiceOutput& one : output_.choices) {
      if (one.choice == static_cast<int>(choice)) return one;
    }
    output_.choices.emplace_back().choice = static_cast<int>(choice);
    return output_.choices.back();
  }
  [[nodiscard]] bool is_late() const {
    return request_.deadline && std::chrono::steady_clock::now() >= *request_.deadline;
  }
  void step(size_t i) {
    if (ended_[i]) return;
    const bool goes_on = !cancelled_ && !fails_ && !is_late();
    if (goes_on && untaken_[i] >= untaken_max_) return;
    ChoiceOutput& out = entry(i);
    if (is_late()) {
      out.finish = FinishReason::deadline;
      ended_[i] = true;
      return;
    }
    if (cancelled_ || fails_) {
      out.finish = fails_ ? FinishReason::error : FinishReason::cancelled;
      if (fails_) output_.error = error_;
      ended_[i] = true;
      return;
    }
    // Choice i says i letters fewer than max_tokens, so that ends differ.
    const int64_t most =
        std::max<int64_t>(request_.options.max_tokens - static_cast<int64_t>(i), 0);
    if (done_[i] < most) {
      const auto letter = static_cast<char>('a' + (done_[i] + static_cast<int64_t>(i)) % 26);
      out.text += letter;
      out.tokens.push_back(letter);
      if (request_.options.logprobs >= 0) {
        ScoredToken score{letter, -0.125f, 1, {}};
        for (int k = 0; k < request_.options.logprobs; ++k) {
          score.top.push_back({letter + k, -0.125f - static_cast<float>(k)});
        }
        out.scores.push_back(std::move(score));
      }
      ++done_[i];
      ++untaken_[i];
    }
    if (done_[i] < most) return;
    out.finish = FinishReason::length;
    ended_[i] = true;
  }

  const GenerationRequest request_;
  const std::function<void()> notify_;
  const int64_t untaken_max_;
  mutable std::mutex mutex_;
  GenerationOutput output_;
  std::vector<int64_t> done_;
  std::vector<bool> ended_;
  std::vector<int64_t> untaken_;  // of each choice
  bool begun_ = false, fresh_ = false, cancelled_ = false, finished_ = false, fails_ = false;
  Status error_;
};

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(std::chrono::microseconds tick = std::chrono::microseconds(200),
                      int64_t context = 4096)
      : tick_(tick) {
    MemoryPlanInput input;
    input.shape.layers = {{2, 64, 0}, {2, 64, 0}};
    options_.session.policy = parse_policy("int4").value().policy;
    input.policy = options_.session.policy;
    input.context_tokens = context;
    input.max_sequences = 4;
    plan_ = plan_memory(input).value();
    thread_ = std::thread([this] { run(); });
  }
  ~FakeEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Result<std::shared_ptr<Generation>> submit(GenerationRequest request,
                                             std::function<void()> notify) override {
    const std::lock_guard lock(mutex_);
    const bool was_spared = std::exchange(test::spared, true);
    auto submitted = submit_spared(std::move(request), std::move(notify));
    test::spared = was_spared;
    return submitted;
  }
  void reset_prefix_cache() override { ++resets; }
  void drain(std::chrono::steady_clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    draining_ = true;
    changed_.wait_until(lock, deadline, [this] { return running_.empty(); });
    for (const auto& generation : running_) generation->cancel();
    changed_.wait(lock, [this] { return running_.empty(); });
  }
  [[nodiscard]] EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats stats;
    stats.running = static_cast<int64_t>(running_.size());
    stats.generation_tokens = 7;
    SessionStats& session = stats.session;
    session.pages_total = 100;
    session.pages_free = 60;
    session.pages_cached = 30;
    session.pages_referenced = 10;
    session.slots_total = 12;
    session.slots_free = 8;
    session.slots_cached = session.slots_referenced = 2;
    session.fullest_share = 0.25;
    stats.layer_errors = {{1, 100, 4, 100, 5}, {}};
    stats.time_to_first_token_s.add(0.02);
    return stats;
  }
  [[nodiscard]] const MemoryPlan& plan() const override { return plan_; }
  [[nodiscard]] const EngineOptions& options() const override { return options_; }

  [[nodiscard]] size_t running() const {
    const std::lock_guard lock(mutex_);
    return running_.size();
  }
  [[nodiscard]] int submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  [[nodiscard]] std::shared_ptr<FakeGeneration> last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  // Of all requests, in order.
  [[nodiscard]] std::vector<uint64_t> seeds() const {
    const std::lock_guard lock(mutex_);
    return seeds_;
  }
  void fail_next() {
    const std::lock_guard lock(mutex_);
    fail_next_ = true;
  }
  std::atomic<int> resets = 0;

 private:
  // What happens without memory in an engine, its own tests tell.
  Result<std::shared_ptr<Generation>> submit_spared(GenerationRequest request,
                                                    std::function<void()> notify) {
    if (draining_ || running_.size() >= 512) {
      return Error{ErrorCode::out_of_memory, "too many requests wait"};
    }
    auto generation = std::make_shared<FakeGeneration>(std::move(request), std::move(notify),
                                                       options_.output_tokens_max);
    if (fail_next_) generation->fail({ErrorCode::invalid_data, "NaN or Inf in layer 3"});
    fail_next_ = false;
    running_.push_back(generation);
    last_ = generation;
    seeds_.push_back(generation->request().options.sampling.seed);
    ++submitted_;
    changed_.notify_all();
    return std::shared_ptr<Generation>(generation);
  }
  void run() {
    test::spared = true;
    std::unique_lock lock(mutex_);
    while (!stop_) {
      changed_.wait_for(lock, tick_, [this] { return stop_; });
      const auto all = running_;
      lock.unlock();
      std::vector<std::shared_ptr<FakeGeneration>> ended;
      for (const auto& generation : all) {
        if (generation->tick()) ended.push_back(generation);
      }
      lock.lock();
      for (const auto& generation : ended) running_.remove(generation);
      if (!ended.empty()) changed_.notify_all();
    }
  }

  const std::chrono::microseconds tick_;
  MemoryPlan plan_;
  EngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<FakeGeneration>> running_;
  std::shared_ptr<FakeGeneration> last_;
  std::vector<uint64_t> seeds_;
  int submitted_ = 0;
  bool stop_ = false, draining_ = false, fail_next_ = false;
  std::thread thread_;
};

}  // namespace kvart
