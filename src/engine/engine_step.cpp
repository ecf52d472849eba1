// ModelEngine: one step, and what its logits lead to.
#include <algorithm>
#include <new>

#include "base/check.h"
#include "base/no_memory.h"
#include "engine/model_engine.h"
#include "engine/token_scores.h"

namespace kvart {

void ModelEngine::run(std::span<const ScheduledWork> work) {
  step_.clear();
  int64_t tokens = 0;
  for (const ScheduledWork& item : work) {
    const Active& active = active_.at(request_of(item.id));
    const auto& known = active.choices[choice_of(item.id)].choice->tokens();
    StepRequest request;
    request.sequence = memory_.sequence(item.id);
    request.tokens =
        std::span(known).subspan(static_cast<size_t>(item.first), static_cast<size_t>(item.count));
    request.logits = item.to_the_end ? WantLogits::last : WantLogits::none;
    if (!active.prompt_scored) request.logits = WantLogits::all;
    step_.push_back(request);
    tokens += item.count;
  }
  stats_.steps += 1;
  stats_.step_tokens.add(static_cast<double>(tokens));
  if (const auto results = step(step_)) {
    for (size_t i = 0; i < work.size(); ++i) finish_work(work[i], (*results)[i]);
    return;
  }
  // One of them may take more than there is, logits of a whole prompt perhaps: one by one, so that
  // it ends alone.
  for (size_t i = 0; i < work.size(); ++i) {
    if (has_ended(work[i])) continue;
    if (const auto result = step({&step_[i], 1})) {
      finish_work(work[i], result->front());
    } else {
      end_request(request_of(work[i].id), FinishReason::error, no_memory());
    }
  }
}

std::optional<std::span<const StepResult>> ModelEngine::step(
    std::span<const StepRequest> requests) try {
  const auto results = session_->step(requests);
  const bool no_memory_for_any = std::all_of(results.begin(), results.end(), [](const auto& one) {
    return !one.status.ok() && one.status.error().code == ErrorCode::out_of_memory;
  });
  if (no_memory_for_any) return std::nullopt;
  return results;
} catch (const std::bad_alloc&) {
  return std::nullopt;
}

// Another choice of its request met an error in this step.
bool ModelEngine::has_ended(const ScheduledWork& work) const {
  return active_.at(request_of(work.id)).choices[choice_of(work.id)].finished;
}

void ModelEngine::finish_work(const ScheduledWork& work, const StepResult& result) {
  if (has_ended(work)) return;
  try {
    use_result(work, result);
  } catch (const std::bad_alloc&) {
    end_request(request_of(work.id), FinishReason::error, no_memory());
  }
}

void ModelEngine::use_result(const ScheduledWork& work, const StepResult& result) {
  const int64_t id = request_of(work.id);
  Active& active = active_.at(id);
  const size_t choice = choice_of(work.id);
  if (!result.status.ok()) {
    end_request(id, FinishReason::error, result.status.error());
    return;
  }
  std::span<const float> last = result.logits;
  if (!active.prompt_scored) {
    score_prompt(work, active, result.logits);
    last = last.last(static_cast<size_t>(model_.config().vocab));
  }
  if (!work.to_the_end) {
    scheduler_.done(work.id, false);
    return;
  }
  scheduler_.done(work.id, true);
  if (active.prompt_done) {
    sample(id, active, choice, last);
  } else {
    finish_prompt(id, active, last);
  }
}

// logits [work.count][vocab]: row i tells of token work.first + i + 1.
void ModelEngine::score_prompt(const ScheduledWork& work, Active& active,
                               std::span<const float> logits) {
  const auto vocab = static_cast<size_t>(model_.config().vocab);
  // No token of an answer is there yet.
  const std::vector<int32_t>& prompt = active.choices.front().choice->tokens();
  if (work.first == 0) {  // from the start, again where memory was lost
    active.prompt_scores.clear();
    active.prompt_scores.push_back({prompt[0], 0, 0, {}});
  }
  for (int64_t row = 0; row < work.count; ++row) {
    const auto next = static_cast<size_t>(work.first + row + 1);
    if (next >= prompt.size()) break;
    active.prompt_scores.push_back(
        score_token(logits.subspan(static_cast<size_t>(row) * vocab, vocab), prompt[next],
                    active.request.options.prompt_logprobs));
  }
}

// The prompt's last logits: every choice draws its first token from them.
void ModelEngine::finish_prompt(int64_t id, Active& active, std::span<const float> logits) {
  const auto now = Clock::now();
  stats_.prompt_tokens += active.prompt_tokens;
  stats_.prefill_s.add(std::chrono::duration<double>(now - active.started).count());
  if (!active.prompt_scored) {
    active.prompt_scored = true;
    active.state->add_prompt_scores(std::move(active.prompt_scores));
    memory_.use_prefix_cache(entry_of(id, 0), true);
    scheduler_.set_scored(entry_of(id, 0), false);
  }
  if (active.request.options.max_tokens == 0) {
    end_request(id, FinishReason::length, {});
    return;
  }
  active.first_token = now;
  stats_.time_to_first_token_s.add(std::chrono::duration<double>(now - active.arrived).count());
  // Copies first: the first choice may end with its first token.
  for (int i = 1; i < active.request.choices; ++i) {
    SchedulerEntry entry = add_choice(id, active, active.choices.front().choice->tokens());
    const int64_t computed = entry.tokens;
    entry.tokens += 1;
    scheduler_.add(entry);
    if (scheduler_.can_run_more() && memory_.fork(entry_of(id, 0), entry.id)) {
      scheduler_.set_running(entry.id, computed);
    }  // else it is computed again later, from cached blocks
  }
  active.prompt_done = true;
  for (size_t i = 0; i < active.choices.size(); ++i) {
    if (!active.choices[i].finished) sample(id, active, i, logits);
  }
}

void ModelEngine::sample(int64_t id, Active& active, size_t choice, std::span<const float> logits) {
  ActiveChoice& own = active.choices[choice];
  ChoiceOutput out = own.choice->next(logits);
  const FinishReason finish = out.finish;
  if (finish == FinishReason::error) {
    end_request(id, finish, Error{ErrorCode::invalid_argument, "no token is allowed"});
    return;
  }
  count_token(active, own);
  active.state->add(std::move(out), 1);
  if (finish != FinishReason::none) end_choice(id, active, choice, finish);
}

void ModelEngine::count_token(Active& active, ActiveChoice& choice) {
  const auto now = Clock::now();
  if (choice.choice->sampled() > 1) {
    stats_.inter_token_s.add(std::chrono::duration<double>(now - choice.last_token).count());
  }
  choice.last_token = now;
  active.sampled += 1;
  stats_.generation_tokens += 1;
}

}  // namespace kvart
