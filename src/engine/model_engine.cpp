// ModelEngine: requests come in, live and end.
#include "engine/model_engine.h"

#include <algorithm>
#include <new>

#include "base/check.h"
#include "base/no_memory.h"
#include "engine/check_request.h"

namespace kvart {

namespace {

// The caller's side of a request.
class GenerationHandle final : public Generation {
 public:
  explicit GenerationHandle(std::shared_ptr<GenerationState> state) : state_(std::move(state)) {}
  ~GenerationHandle() override { state_->cancel(); }
  GenerationOutput take() override { return state_->take(); }
  void cancel() override { state_->cancel(); }
  [[nodiscard]] GenerationUsage usage() const override { return state_->usage(); }

 private:
  std::shared_ptr<GenerationState> state_;
};

// Whoever has to be told again, for want of memory, isn't told at once.
constexpr auto tell_again_after = std::chrono::milliseconds(10);

Error error_or_no_memory(ErrorCode code, const char* text) {
  try {
    return {code, text};
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

// Of all scored prompts in a step together: each of their tokens has a row of logits.
int64_t scored_tokens(const Model& model) {
  constexpr int64_t logits_bytes_max = int64_t{64} << 20;
  const auto row_bytes = static_cast<int64_t>(sizeof(float)) * model.config().vocab;
  return std::max<int64_t>(1, logits_bytes_max / row_bytes);
}

std::vector<int32_t> ends_of(const Model& model) {
  std::vector<int32_t> ends;
  for (int32_t token = 0; token < model.config().vocab; ++token) {
    if (model.ends_generation(token)) ends.push_back(token);
  }
  return ends;
}

}  // namespace

ModelEngine::ModelEngine(const Model& model, const EngineOptions& options,
                         std::unique_ptr<Session> session)
    : model_(model),
      options_(options),
      session_(std::move(session)),
      model_ends_(ends_of(model)),
      scheduler_({options.session.max_step_tokens, options.max_running, scored_tokens(model)}),
      memory_(*session_) {
  step_.reserve(static_cast<size_t>(options.max_running));
  publish();
  thread_ = std::thread([this] { loop(); });
}

ModelEngine::~ModelEngine() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    cancel_all_ = true;
    stop_ = true;
  }
  waker_->wake();
  thread_.join();
}

Result<std::shared_ptr<Generation>> ModelEngine::submit(GenerationRequest request,
                                                        std::function<void()> notify) try {
  Status refusal =
      check_request(request, model_.config().vocab, options_.session.context_tokens, model_ends_);
  States place;
  std::shared_ptr<Generation> handle;
  if (refusal.ok()) {
    auto state = std::make_shared<GenerationState>(
        static_cast<size_t>(request.choices), static_cast<int64_t>(request.prompt.size()),
        options_.output_tokens_max, std::move(notify), waker_);
    handle = std::make_shared<GenerationHandle>(state);
    place.push_back(std::move(state));
  }
  {
    const std::lock_guard lock(mutex_);
    if (refusal.ok() && closed_) {
      refusal = Error{ErrorCode::out_of_memory, "the engine is shutting down"};
    } else if (refusal.ok() && unfinished_ - options_.max_running >= options_.max_waiting) {
      refusal = Error{ErrorCode::out_of_memory,
                      std::to_string(unfinished_) + " requests are under way already; try later"};
    }
    if (!refusal.ok()) {
      published_.refused += 1;
      return refusal.error();
    }
    inbox_.push_back({std::move(request), std::move(place), Clock::now()});
    unfinished_ += 1;
  }
  waker_->wake();
  return handle;
} catch (const std::bad_alloc&) {
  return no_memory();
}

void ModelEngine::reset_prefix_cache() {
  {
    const std::lock_guard lock(mutex_);
    reset_ = true;
  }
  waker_->wake();
}

void ModelEngine::drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  closed_ = true;
  const auto empty = [this] { return unfinished_ == 0 && untold_ == 0; };
  if (all_finished_.wait_until(lock, deadline, empty)) return;
  cancel_all_ = true;
  waker_->wake();
  all_finished_.wait(lock, empty);
}

EngineStats ModelEngine::stats() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void ModelEngine::loop() {
  while (true) {
    take_inbox();
    look_after_requests();
    const auto work = scheduler_.plan(memory_);
    note_changes();
    // Where one that will never run was given up, those behind it may run.
    const bool idle = work.empty() && !scheduler_.hopeless();
    if (!work.empty()) run(work);
    remove_finished();
    publish();
    if (!idle) continue;
    if (is_over()) return;
    const bool told = told_all_ && ended_.empty();
    waker_->wait_until(told ? next_deadline() : Clock::now() + tell_again_after);
  }
}

bool ModelEngine::is_over() const {
  const std::lock_guard lock(mutex_);
  return stop_ && inbox_.empty() && active_.empty();
}

ModelEngine::Clock::time_point ModelEngine::next_deadline() const {
  auto next = Clock::now() + std::chrono::hours(1);
  for (const auto& [id, active] : active_) {
    if (active.request.deadline) next = std::min(next, *active.request.deadline);
  }
  return next;
}

void ModelEngine::take_inbox() {
  std::vector<Submitted> arrived;
  bool reset = false;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(inbox_);
    std::swap(reset, reset_);
  }
  if (reset) session_->reset_prefix_cache();
  for (Submitted& submitted : arrived) begin_or_end(std::move(submitted));
}

void ModelEngine::begin_or_end(Submitted submitted) {
  const int64_t id = next_id_++;
  try {
    // Its end needs no memory then.
    if (finished_.capacity() <= active_.size()) finished_.reserve(2 * active_.size() + 1);
    active_[id];
  } catch (const std::bad_alloc&) {
    stats_.finished[static_cast<size_t>(FinishReason::error)] += 1;
    submitted.state.front()->end_rest(FinishReason::error, no_memory());
    ending_.splice(ending_.end(), submitted.state);
    return;
  }
  try {
    begin(id, std::move(submitted));
  } catch (const std::bad_alloc&) {
    end_request(id, FinishReason::error, no_memory());
  }
}

void ModelEngine::begin(int64_t id, Submitted submitted) {
  Active& active = active_.at(id);
  active.request = std::move(submitted.request);
  active.state = submitted.state.front();
  active.place = std::move(submitted.state);
  active.arrived = submitted.arrived;
  const GenerationOptions& options = active.request.options;
  active.prompt_scored = options.prompt_logprobs < 0;
  active.prompt_tokens = active.request.prompt.size();
  active.unfinished = static_cast<size_t>(active.request.choices);
  active.choices.reserve(active.unfinished);
  if (options.max_tokens == 0 && active.prompt_scored) {
    end_request(id, FinishReason::length, {});
    return;
  }
  scheduler_.add(add_choice(id, active, std::move(active.request.prompt)));
  if (!active.prompt_scored) memory_.use_prefix_cache(entry_of(id, 0), false);
}

SchedulerEntry ModelEngine::add_choice(int64_t id, Active& active, std::vector<int32_t> prompt) {
  const size_t choice = active.choices.size();
  const ChoiceSource source{&model_, &active.request.options, model_ends_, &sampling_};
  auto made = std::make_unique<Choice>(source, std::move(prompt), static_cast<int>(choice));
  memory_.know(entry_of(id, choice), &made->tokens(), active.request.salt);
  active.choices.emplace_back().choice = std::move(made);  // there is room for it
  SchedulerEntry entry;
  entry.id = entry_of(id, choice);
  entry.priority = active.request.priority;
  entry.arrival = entry.id;
  entry.tokens = static_cast<int64_t>(active.prompt_tokens);
  entry.scored = !active.prompt_scored;
  return entry;
}

// Cancelled ones, deadlines, slow readers, those who have to be told again.
void ModelEngine::look_after_requests() {
  bool cancel_all = false;
  {
    const std::lock_guard lock(mutex_);
    cancel_all = cancel_all_;
  }
  const auto now = Clock::now();
  told_all_ = true;
  for (auto& [id, active] : active_) {
    if (active.unfinished == 0) continue;
    told_all_ = active.state->tell_again() && told_all_;
    if (cancel_all || active.state->cancelled()) {
      end_request(id, FinishReason::cancelled, {});
    } else if (active.request.deadline && now >= *active.request.deadline) {
      end_request(id, FinishReason::deadline, {});
    } else {
      for (size_t i = 0; i < active.choices.size(); ++i) {
        if (active.choices[i].finished) continue;
        scheduler_.set_paused(entry_of(id, i), active.state->is_full(static_cast<int>(i)));
      }
    }
  }
  remove_finished();
}

// What the scheduler has decided, for those who count it.
void ModelEngine::note_changes() {
  for (const EntryId entry : scheduler_.preempted()) {
    active_.at(request_of(entry)).state->count_preemption();
    stats_.preemptions += 1;
  }
  const auto now = Clock::now();
  for (const EntryId entry : scheduler_.admitted()) {
    Active& active = active_.at(request_of(entry));
    if (active.was_started) continue;
    active.was_started = true;
    active.started = now;
    stats_.queue_s.add(std::chrono::duration<double>(now - active.arrived).count());
    if (scheduler_.is_running(entry)) {
      active.state->set_cached(session_->cached_tokens(memory_.sequence(entry)));
    }
  }
  if (const auto hopeless = scheduler_.hopeless()) {
    end_request(
        request_of(*hopeless), FinishReason::error,
        error_or_no_memory(ErrorCode::out_of_memory, "the cache has no room for the request"));
  }
}

void ModelEngine::end_request(int64_t id, FinishReason reason, Status error) {
  Active& active = active_.at(id);
  if (active.unfinished == 0) return;
  active.state->end_rest(reason, std::move(error));
  for (size_t i = 0; i < static_cast<size_t>(active.request.choices); ++i) {
    if (i < active.choices.size() && active.choices[i].finished) continue;
    end_choice(id, active, i, reason);
  }
}

void ModelEngine::end_choice(int64_t id, Active& active, size_t choice, FinishReason reason) {
  active.unfinished -= 1;
  if (choice < active.choices.size()) {  // else it was never made
    scheduler_.remove(entry_of(id, choice), memory_);
    memory_.forget(entry_of(id, choice));
    active.choices[choice].finished = true;
    active.choices[choice].choice.reset();
  }
  if (active.unfinished > 0) return;
  const auto now = Clock::now();
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  stats_.finished[static_cast<size_t>(reason)] += 1;
  stats_.end_to_end_s.add(seconds(now - active.arrived));
  stats_.prompt_lengths.add(static_cast<double>(active.prompt_tokens));
  stats_.completion_lengths.add(static_cast<double>(active.sampled));
  if (active.sampled > 0) {
    stats_.decode_s.add(seconds(now - active.first_token));
    const auto later = active.sampled - active.request.choices;
    if (later > 0) {
      stats_.time_per_output_token_s.add(seconds(now - active.first_token) *
                                         static_cast<double>(active.request.choices) /
                                         static_cast<double>(later));
    }
  }
  finished_.push_back(id);
}

// Whoever hears that a request has finished finds it in the statistics, and its place free.
void ModelEngine::remove_finished() {
  for (const int64_t id : finished_) {
    ending_.splice(ending_.end(), active_.extract(id).mapped().place);
  }
  finished_.clear();
  if (ending_.empty() && ended_.empty()) return;
  if (!ending_.empty()) {
    publish();
    const std::lock_guard lock(mutex_);
    unfinished_ -= static_cast<int64_t>(ending_.size());
    untold_ += static_cast<int64_t>(ending_.size());
  }
  for (const auto& state : ending_) state->finish();
  ended_.splice(ended_.end(), ending_);
  ended_.remove_if([](const auto& state) { return state->tell_again(); });
  const std::lock_guard lock(mutex_);
  untold_ = static_cast<int64_t>(ended_.size());
  if (unfinished_ == 0 && untold_ == 0) all_finished_.notify_all();
}

void ModelEngine::publish() {
  stats_.running = scheduler_.running();
  stats_.waiting = scheduler_.waiting();
  stats_.paused = scheduler_.paused();
  stats_.session = session_->stats();
  const std::span<const LayerError> errors = session_->layer_errors();
  stats_.layer_errors.assign(errors.begin(), errors.end());
  const std::lock_guard lock(mutex_);
  stats_.refused = published_.refused;
  published_ = stats_;
}

Result<std::unique_ptr<Engine>> Engine::create(const Model& model, const EngineOptions& options) {
  const auto check = [](const char* name, int64_t value, int64_t least) -> Status {
    if (value >= least) return {};
    return Error{ErrorCode::invalid_argument, std::string(name) + " = " + std::to_string(value) +
                                                  "; it takes " + std::to_string(least) +
                                                  " or more"};
  };
  KVART_RETURN_IF_ERROR(check("max_running", options.max_running, 1));
  KVART_RETURN_IF_ERROR(check("max_waiting", options.max_waiting, 0));
  KVART_RETURN_IF_ERROR(check("output_tokens_max", options.output_tokens_max, 1));
  // One token of each running sequence belongs to a step.
  KVART_RETURN_IF_ERROR(
      check("max_step_tokens", options.session.max_step_tokens, options.max_running));
  SessionOptions session_options = options.session;
  session_options.open_sequences = options.max_running;
  auto session = Session::create(model, session_options);
  if (!session) return session.error();
  return std::unique_ptr<Engine>(
      std::make_unique<ModelEngine>(model, options, std::move(session).value()));
}

}  // namespace kvart
