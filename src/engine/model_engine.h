// ModelEngine: the one Engine. Everything below the inbox belongs to the engine's thread.
//
// Where the system has no memory for what a request needs, that request ends with an error and the
// others go on. What ending one takes is there before it begins.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/choice.h"
#include "engine/generation.h"
#include "engine/scheduler.h"
#include "engine/session_memory.h"
#include "kvart/engine.h"

namespace kvart {

class ModelEngine final : public Engine {
 public:
  ModelEngine(const Model& model, const EngineOptions& options, std::unique_ptr<Session> session);
  ~ModelEngine() override;

  Result<std::shared_ptr<Generation>> submit(GenerationRequest request,
                                             std::function<void()> notify) override;
  void reset_prefix_cache() override;
  void drain(std::chrono::steady_clock::time_point deadline) override;
  [[nodiscard]] EngineStats stats() const override;
  [[nodiscard]] const MemoryPlan& plan() const override { return session_->plan(); }
  [[nodiscard]] const EngineOptions& options() const override { return options_; }

 private:
  using Clock = std::chrono::steady_clock;
  // Moving an element to another list needs no memory.
  using States = std::list<std::shared_ptr<GenerationState>>;

  struct Submitted {
    GenerationRequest request;
    States state;  // one
    Clock::time_point arrived;
  };
  struct ActiveChoice {
    std::unique_ptr<Choice> choice;  // until it has finished
    bool finished = false;
    Clock::time_point last_token;
  };
  struct Active {  // a request that has not ended
    GenerationRequest request;
    std::shared_ptr<GenerationState> state;
    States place;  // where it ends: the state once more
    size_t prompt_tokens = 0;
    // The first one, which has the prompt; the others once that is computed: each takes memory.
    std::vector<ActiveChoice> choices;
    size_t unfinished = 0;  // of all that were asked for
    std::vector<ScoredToken> prompt_scores;
    bool prompt_scored = false;  // or no scores are asked for
    bool prompt_done = false;
    Clock::time_point arrived, started, first_token;
    bool was_started = false;
    int64_t sampled = 0;
  };

  // Entries of the scheduler: one for each choice.
  static constexpr int choice_bits = 8;
  static EntryId entry_of(int64_t request, size_t choice) {
    return (request << choice_bits) | static_cast<EntryId>(choice);
  }
  static int64_t request_of(EntryId entry) { return entry >> choice_bits; }
  static size_t choice_of(EntryId entry) {
    return static_cast<size_t>(entry & ((1 << choice_bits) - 1));
  }

  void loop();
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] Clock::time_point next_deadline() const;
  void take_inbox();
  void begin(int64_t id, Submitted submitted);
  void begin_or_end(Submitted submitted);
  // Makes the next choice and makes it known to the memory; the entry is for the scheduler.
  SchedulerEntry add_choice(int64_t id, Active& active, std::vector<int32_t> prompt);
  void look_after_requests();
  void note_changes();

  void run(std::span<const ScheduledWork> work);
  // Nothing: the system has no memory for the step, and nothing of it was run.
  std::optional<std::span<const StepResult>> step(std::span<const StepRequest> requests);
  [[nodiscard]] bool has_ended(const ScheduledWork& work) const;
  void finish_work(const ScheduledWork& work, const StepResult& result);
  void use_result(const ScheduledWork& work, const StepResult& result);
  void score_prompt(const ScheduledWork& work, Active& active, std::span<const float> logits);
  void finish_prompt(int64_t id, Active& active, std::span<const float> logits);
  void sample(int64_t id, Active& active, size_t choice, std::span<const float> logits);
  void count_token(Active& active, ActiveChoice& choice);
  void end_choice(int64_t id, Active& active, size_t choice, FinishReason reason);
  void end_request(int64_t id, FinishReason reason, Status error);
  void remove_finished();
  void publish();

  const Model& model_;
  EngineOptions options_;
  std::unique_ptr<Session> session_;
  std::vector<int32_t> model_ends_;
  std::shared_ptr<Waker> waker_ = std::make_shared<Waker>();

  // Shared with other threads.
  mutable std::mutex mutex_;
  std::vector<Submitted> inbox_;
  int64_t unfinished_ = 0;  // requests, those in the inbox included
  int64_t untold_ = 0;      // finished ones whose callers don't know yet
  std::condition_variable all_finished_;
  bool closed_ = false;      // no new requests
  bool cancel_all_ = false;  // what runs ends
  bool reset_ = false;
  bool stop_ = false;
  EngineStats published_;

  // Of the engine's thread.
  Scheduler scheduler_;
  SessionMemory memory_;
  std::unordered_map<int64_t, Active> active_;
  std::vector<int64_t> finished_;
  States ending_;         // requests that have ended, and are not counted so yet
  States ended_;          // whose readers have to be told again
  bool told_all_ = true;  // of what is new of those that have not ended
  int64_t next_id_ = 0;
  EngineStats stats_;
  std::vector<StepRequest> step_;
  SamplingBuffers sampling_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kvart
