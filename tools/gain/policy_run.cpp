// Sessions, filled and stepped.
#include "tools/gain/policy_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvart::tools {
namespace {

using Clock = std::chrono::steady_clock;

// Decode steps begin here, so that each of them stays inside the open block and can be taken back.
constexpr int64_t tokens_below_context = 2;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Tokens without a meaning, all over the vocabulary.
std::vector<int32_t> some_tokens(int64_t count, int vocab) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  uint64_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

SessionOptions session_options(const Model& model, const GainOptions& options, const Policy& policy,
                               int64_t context) {
  SessionOptions session;
  session.policy = policy;
  session.context_tokens = context;
  session.max_step_tokens = prefill_chunk_of(model);
  session.threads = options.threads;
  session.prefix_caching = false;
  return session;
}

// Seconds of a step with these tokens of a sequence.
Result<double> timed_step(Session& session, SequenceId id, std::span<const int32_t> tokens,
                          WantLogits logits) {
  const StepRequest request{id, tokens, logits};
  const auto start = Clock::now();
  const StepResult& result = session.step({&request, 1})[0];
  const double seconds = seconds_since(start);
  if (!result.status.ok()) return result.status.error();
  return seconds;
}

}  // namespace

int64_t shortest_prefill(const std::vector<NamedPolicy>& policies) {
  int64_t sinks = 0;
  for (const NamedPolicy& named : policies) {
    sinks = std::max<int64_t>(sinks, named.policy.sink_blocks);
  }
  return (sinks + 2) * block_tokens - tokens_below_context;
}

int64_t prefill_within(int64_t tokens, int64_t shortest) {
  const int64_t whole = (tokens + tokens_below_context) / block_tokens * block_tokens;
  return std::max(shortest, whole - tokens_below_context);
}

Result<PrefilledSequence> open_prefill(const Model& model, const GainOptions& options,
                                       const Policy& policy, int64_t tokens) {
  PrefilledSequence sequence;
  sequence.tokens = tokens;
  auto session = Session::create(model, session_options(model, options, policy, tokens));
  if (!session.ok()) return session.error();
  sequence.session = std::move(*session);
  const auto id = sequence.session->start({}, "");
  if (!id.ok()) return id.error();
  sequence.id = *id;
  return sequence;
}

Status prefill(const Model& model, PrefilledSequence& sequence,
               const std::function<bool()>& is_over) {
  Session& session = *sequence.session;
  session.release(sequence.id);
  const auto id = session.start({}, "");
  if (!id.ok()) return id.error();
  sequence.id = *id;
  const std::vector<int32_t> tokens = some_tokens(sequence.tokens, model.config().vocab);
  const int chunk = prefill_chunk_of(model);
  double seconds = 0;
  for (int64_t at = 0; at < sequence.tokens; at += chunk) {
    if (is_over()) return {};
    const int64_t count = std::min<int64_t>(chunk, sequence.tokens - at);
    const bool last = at + count == sequence.tokens;
    const auto took =
        timed_step(session, sequence.id,
                   std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
                   last ? WantLogits::last : WantLogits::none);
    if (!took.ok()) return took.error();
    seconds += *took;
  }
  sequence.seconds.push_back(seconds);
  return {};
}

Result<PolicyRun> PolicyRun::open(const Model& model, const GainOptions& options,
                                  const NamedPolicy& policy, int64_t context,
                                  const PrefilledSequence& source) {
  PolicyRun run;
  run.source_ = &source;
  run.point_.word = policy.word;
  run.point_.context_tokens = context;
  run.prefill_chunk_ = prefill_chunk_of(model);
  SessionOptions wanted = session_options(model, options, policy.policy, context);
  wanted.max_sequences = 0;
  wanted.budget_bytes = options.kv_memory_bytes;
  const auto plan = plan_memory(plan_input(model.config(), wanted));
  if (!plan.ok() && plan.error().code == ErrorCode::out_of_memory) return run;
  if (!plan.ok()) return plan.error();
  run.batch_max_ = std::min(options.batch_max, plan->sequences);
  wanted.max_step_tokens = std::max(run.prefill_chunk_, static_cast<int>(run.batch_max_));
  auto session = Session::create(model, wanted);
  if (!session.ok()) return session.error();
  run.session_ = std::move(*session);
  run.point_.sequences_planned = run.session_->plan().sequences;
  return run;
}

Status PolicyRun::measure_prefill() {
  point_.prefill_whole = source_->tokens + tokens_below_context >= point_.context_tokens;
  point_.prefill_tokens = source_->tokens;
  point_.prefill_s = source_->seconds;
  if (point_.prefill_whole) return {};
  const int64_t chunk = std::min<int64_t>(prefill_chunk_, point_.context_tokens / 2);
  const int64_t middle = (point_.context_tokens - chunk) / 2 / block_tokens * block_tokens;
  const int64_t depth = std::max(middle, source_->tokens);
  const int64_t count = std::min<int64_t>(chunk, point_.context_tokens - depth);
  const auto id = session_->imitate(*source_->session, source_->id, depth);
  if (!id.ok()) return id.error();
  const std::vector<int32_t> tokens(static_cast<size_t>(count), 1);
  const auto took = timed_step(*session_, *id, tokens, WantLogits::none);
  session_->release(*id);
  if (!took.ok()) return took.error();
  point_.prefill_tokens = count;
  point_.prefill_s = {*took};
  return {};
}

Status PolicyRun::admit(const std::function<bool()>& is_over) {
  const int64_t length = point_.context_tokens - tokens_below_context;
  while (true) {
    const auto started = static_cast<int64_t>(sequences_.size());
    if (started >= 2 && started < point_.sequences_planned && is_over()) break;
    const auto id = session_->imitate(*source_->session, source_->id, length);
    if (!id.ok() && id.error().code != ErrorCode::out_of_memory) return id.error();
    point_.one_more_refused = !id.ok();
    if (!id.ok()) break;
    if (started == point_.sequences_planned) {  // it would find no room to its end
      session_->release(*id);
      break;
    }
    sequences_.push_back(*id);
  }
  if (sequences_.empty()) {
    return Error{ErrorCode::out_of_memory, point_.word + ": not one sequence could be started"};
  }
  point_.sequences_started = static_cast<int64_t>(sequences_.size());
  point_.sequences = point_.one_more_refused ? point_.sequences_started : point_.sequences_planned;
  return {};
}

int64_t PolicyRun::batch_max() const {
  return std::min(batch_max_, point_.sequences_started);
}

Result<double> PolicyRun::step(int64_t batch) {
  const int32_t token = 1;
  std::vector<StepRequest> requests;
  for (int64_t i = 0; i < batch; ++i) {
    requests.push_back({sequences_[static_cast<size_t>(i)], {&token, 1}, WantLogits::last});
  }
  const int64_t length = session_->length(sequences_.front());
  const auto start = Clock::now();
  const std::span<const StepResult> results = session_->step(requests);
  const double seconds = seconds_since(start);
  for (const StepResult& result : results) {
    if (!result.status.ok()) return result.status.error();
  }
  for (const StepRequest& request : requests) {
    KVART_RETURN_IF_ERROR(session_->truncate(request.sequence, length));
  }
  return seconds;
}

}  // namespace kvart::tools
