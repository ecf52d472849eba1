// Running of the questions.
#include "tools/eval/needle.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "tools/eval/distribution.h"
#include "tools/hash.h"

namespace kvart::tools {
namespace {

constexpr int step_tokens = 512;

// In the middle of equal parts: at the very ends a fact would lie in a block that stays in full
// precision.
std::vector<double> even_depths(int count) {
  std::vector<double> depths;
  depths.reserve(count);
  for (int i = 0; i < count; ++i) depths.push_back(100 * (i + 0.5) / count);
  return depths;
}

Status complete_options(const ModelConfig& config, NeedleOptions* options) {
  if (options->contexts.empty()) options->contexts = usual_contexts(config);
  std::sort(options->contexts.begin(), options->contexts.end());
  options->contexts.erase(std::unique(options->contexts.begin(), options->contexts.end()),
                          options->contexts.end());
  if (options->needles == 0) options->needles = usual_needles(options->task);
  if (options->depths_percent.empty()) options->depths_percent = even_depths(options->needles);
  std::sort(options->depths_percent.begin(), options->depths_percent.end());
  options->needles = static_cast<int>(options->depths_percent.size());
  const int64_t limit = config.context_length;
  if (limit > 0 && options->contexts.back() > limit) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--contexts {}: the model was made for {} tokens",
                             options->contexts.back(), limit)};
  }
  return {};
}

// Of the shortest prompt the end at least reads a quantized block under every policy.
Status check_length(const NeedleOptions& options, int64_t context, const NeedlePrompts& made) {
  int64_t least = 0;
  for (const NamedPolicy& policy : options.policies) {
    least = std::max(least, first_quantized_read(policy.policy));
  }
  for (const NeedlePrompt& prompt : made.prompts) {
    const auto tokens = static_cast<int64_t>(prompt.tokens.size());
    if (tokens > least) continue;
    const std::string nothing = fmt::format(
        "the prompt has {} tokens, and up to {} nothing is read quantized", tokens, least);
    // As long as the prompt would be if the reply had no more than the answers need.
    const int64_t spared = made.reply_tokens - made.least_reply_tokens;
    if (tokens + spared > least) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("--reply-tokens {} of --contexts {}: {}; give the reply fewer, or a "
                               "longer context",
                               options.reply_tokens, context, nothing)};
    }
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--contexts {}: {}; give a longer context", context, nothing)};
  }
  return {};
}

// None: it was ended before all prompts were made.
Result<std::optional<NeedleGroup>> make_group(const Model& model, const NeedleOptions& options,
                                              int64_t context, int text, const Watch& watch) {
  const auto part = static_cast<uint64_t>(context) * 1000003U + static_cast<uint64_t>(text);
  const uint64_t seed = mixed_seed(options.seed, part);
  const std::vector<std::string> sentences =
      options.haystack.empty() ? generated_sentences(seed, enough_sentences(context))
                               : sentences_of(options.haystack);
  Random random(mixed_seed(seed, 1));
  std::vector<std::vector<double>> depths = {options.depths_percent};
  if (options.task == NeedleTask::single) {
    depths.clear();
    for (const double depth : options.depths_percent) depths.push_back({depth});
  }
  NeedleGroup group{context, text, 0, {}};
  for (const std::vector<double>& own : depths) {
    const NeedleSet set = make_needles(options.task, own, random);
    auto made = make_prompts(model, set, sentences, options.haystack_name,
                             {context, options.reply_tokens, options.raw}, watch);
    if (!made.ok()) return made.error();
    if (made->ended) return std::optional<NeedleGroup>();
    KVART_RETURN_IF_ERROR(check_length(options, context, *made));
    group.reply_tokens = std::max(group.reply_tokens, made->reply_tokens);
    for (NeedlePrompt& prompt : made->prompts) group.prompts.push_back(std::move(prompt));
  }
  return std::optional(std::move(group));
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}+0000", fmt::gmtime(now));
}

// Asks the questions of one group under one policy.
class Asking {
 public:
  Asking(const Model& model, const NeedleOptions& options, const NeedleGroup& group,
         const NeedlePolicy& policy, Watch* watch)
      : model_(model),
        options_(options),
        group_(group),
        policy_(policy),
        watch_(*watch),
        vocab_(static_cast<size_t>(model.config().vocab)) {}

  Status prepare() {
    auto session = make_session(model_, policy_.policy.policy,
                                {group_.context_tokens, step_tokens, options_.threads, true});
    if (!session.ok()) return session.error();
    session_ = std::move(*session);
    return {};
  }

  // False: it was ended before it was done.
  Result<bool> ask(const NeedlePrompt& prompt, NeedleRecord* record) {
    const auto start = std::chrono::steady_clock::now();
    record->asked = prompt.question;
    record->context_tokens = group_.context_tokens;
    record->text = group_.text;
    record->prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
    record->true_depth_percent = prompt.needle_first < 0
                                     ? prompt.question.depth_percent
                                     : 100 * static_cast<double>(prompt.needle_first) /
                                           static_cast<double>(prompt.tokens.size());
    auto done = score_answer(prompt, record);
    if (!done.ok() || !*done) return done;
    if (!finished(prompt.question)) {
      auto decoded = decode(prompt, record);
      if (!decoded.ok() || !*decoded) return decoded;
    }
    record->reply = reply_text();
    record->score = reply_score(options_.task, prompt.question, record->reply);
    record->duration_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    record->timestamp_utc = now_utc();
    return true;
  }

 private:
  // Runs what is not cached of `tokens`. False: ended.
  Result<bool> feed(SequenceId sequence, std::span<const int32_t> tokens, bool counts) {
    for (auto first = static_cast<size_t>(session_->cached_tokens(sequence));
         first < tokens.size();) {
      if (watch_.should_end()) return false;
      const size_t count = std::min(tokens.size() - first, static_cast<size_t>(step_tokens));
      const bool last = first + count == tokens.size();
      KVART_RETURN_IF_ERROR(
          step(sequence, tokens.subspan(first, count), last ? WantLogits::last : WantLogits::none));
      first += count;
      if (counts) watch_.advance(static_cast<double>(count));
    }
    return true;
  }

  Status step(SequenceId sequence, std::span<const int32_t> tokens, WantLogits want) {
    const StepRequest request{sequence, tokens, want};
    const StepResult& result = session_->step({&request, 1})[0];
    if (!result.status.ok()) {
      return Error{result.status.error().code,
                   policy_.policy.word + ": " + result.status.error().message};
    }
    logits_ = result.logits;
    return {};
  }

  // The right answer is fed, so that the probability of each of its tokens is known. As far as it
  // is what the model would have said, it is also the reply: the same bits as in decode.
  Result<bool> score_answer(const NeedlePrompt& prompt, NeedleRecord* record) {
    const auto sequence = session_->start(prompt.tokens, "");
    if (!sequence.ok()) return sequence.error();
    record->cached_tokens = session_->cached_tokens(*sequence);
    watch_.advance(static_cast<double>(record->cached_tokens));
    auto fed = feed(*sequence, prompt.tokens, true);
    if (!fed.ok() || !*fed) return fed;
    record->read_quantized = reads_quantized(*sequence, prompt);
    const std::vector<int32_t>& answer = prompt.answer;
    path_.clear();
    double sum = 0;
    bool on_path = true;
    for (size_t i = 0; i <= answer.size(); ++i) {
      const size_t row = i == 0 ? 0 : i - 1;
      const std::span<const float> logits = logits_.subspan(row * vocab_, vocab_);
      const int32_t likely = most_likely(logits);
      if (on_path) path_.push_back(likely);
      if (i == answer.size()) break;
      on_path = on_path && likely == answer[i];
      sum += static_cast<double>(logits[static_cast<size_t>(answer[i])]) - log_sum_exp(logits);
      if (i == 0) KVART_RETURN_IF_ERROR(step(*sequence, answer, WantLogits::all));
    }
    session_->release(*sequence);
    record->logprob = sum / static_cast<double>(answer.size());
    return true;
  }

  // A cache that quantizes has sealed the fact's blocks, and they aren't first ones.
  [[nodiscard]] bool reads_quantized(SequenceId sequence, const NeedlePrompt& prompt) const {
    if (!policy_.quantizes || prompt.needle_first < 0) return false;
    const int64_t first = prompt.needle_first / block_tokens;
    const int64_t last = prompt.needle_last / block_tokens;
    return first >= policy_.policy.policy.sink_blocks &&
           (last + 1) * block_tokens <= session_->length(sequence) &&
           !session_->sealed_block(sequence, last).empty();
  }

  [[nodiscard]] bool finished(const Question& question) const {
    return model_.ends_generation(path_.back()) ||
           reply_is_complete(options_.task, question, reply_text()) ||
           static_cast<int64_t>(path_.size()) >= group_.reply_tokens;
  }

  // Goes on from where the reply left the right answer.
  Result<bool> decode(const NeedlePrompt& prompt, NeedleRecord* record) {
    std::vector<int32_t> tokens = prompt.tokens;
    tokens.insert(tokens.end(), path_.begin(), path_.end());
    const auto sequence = session_->start(tokens, "");
    if (!sequence.ok()) return sequence.error();
    auto fed = feed(*sequence, tokens, false);
    if (!fed.ok() || !*fed) return fed;
    while (true) {
      path_.push_back(most_likely(logits_));
      if (finished(prompt.question)) break;
      if (watch_.should_end()) return false;
      KVART_RETURN_IF_ERROR(step(*sequence, {&path_.back(), 1}, WantLogits::last));
    }
    session_->release(*sequence);
    record->truncated = !model_.ends_generation(path_.back()) &&
                        !reply_is_complete(options_.task, prompt.question, reply_text());
    return true;
  }

  [[nodiscard]] std::string reply_text() const {
    std::span<const int32_t> tokens = path_;
    if (model_.ends_generation(tokens.back())) tokens = tokens.first(tokens.size() - 1);
    return model_.detokenize(tokens, false);
  }

  const Model& model_;
  const NeedleOptions& options_;
  const NeedleGroup& group_;
  const NeedlePolicy& policy_;
  Watch& watch_;
  size_t vocab_;
  std::unique_ptr<Session> session_;
  std::span<const float> logits_;  // of the last step
  std::vector<int32_t> path_;      // what the model says, greedily
};

Status set_policies(const ModelConfig& config, NeedleResult* result) {
  for (const NamedPolicy& policy : result->asked.policies) {
    const auto bytes = policy_bytes(config, policy.policy);
    if (!bytes.ok()) return bytes.error();
    const auto quantized = quantizes(config, policy.policy);
    if (!quantized.ok()) return quantized.error();
    result->policies.push_back({policy, *bytes, *quantized});
  }
  return {};
}

// All policies on one group. False: ended.
Result<bool> run_group(const Model& model, const NeedleGroup& group, int64_t first_question,
                       NeedleResult* result, Watch& watch) {
  for (size_t p = 0; p < result->policies.size(); ++p) {
    Asking asking(model, result->asked, group, result->policies[p], &watch);
    KVART_RETURN_IF_ERROR(asking.prepare());
    for (size_t i = 0; i < group.prompts.size(); ++i) {
      NeedleRecord record;
      record.policy = p;
      record.question = first_question + static_cast<int64_t>(i);
      auto done = asking.ask(group.prompts[i], &record);
      if (!done.ok() || !*done) return done;
      result->records.push_back(std::move(record));
    }
  }
  return true;
}

}  // namespace

std::vector<int64_t> usual_contexts(const ModelConfig& config) {
  std::vector<int64_t> contexts = {1024, 2048, 4096};
  const int64_t limit = config.context_length;
  if (limit <= 0) return contexts;
  std::erase_if(contexts, [limit](int64_t context) { return context > limit; });
  if (contexts.empty()) contexts.push_back(limit);
  return contexts;
}

Result<PreparedNeedle> prepare_needle(const Model& model, const NeedleOptions& options,
                                      Watch& watch) {
  PreparedNeedle prepared;
  NeedleResult& result = prepared.result;
  result.asked = options;
  result.model = model_json(model);
  KVART_RETURN_IF_ERROR(complete_options(model.config(), &result.asked));
  KVART_RETURN_IF_ERROR(set_policies(model.config(), &result));
  const auto texts = static_cast<double>(result.asked.texts);
  watch.begin("needle: texts", texts * static_cast<double>(result.asked.contexts.size()));
  Hash hash;
  for (const int64_t context : result.asked.contexts) {
    for (int text = 0; text < result.asked.texts; ++text) {
      auto group = make_group(model, result.asked, context, text, watch);
      if (!group.ok()) return group.error();
      prepared.ended = !group->has_value();
      if (prepared.ended) return prepared;
      for (const NeedlePrompt& prompt : (*group)->prompts) {
        hash.add(prompt.tokens);
        hash.add(prompt.answer);
      }
      prepared.groups.push_back(std::move(**group));
      watch.advance(1);
    }
  }
  result.prompts_hash = hash.value();
  return prepared;
}

Result<NeedleResult> run_needle(const Model& model, const PreparedNeedle& prepared, Watch& watch) {
  NeedleResult result = prepared.result;
  result.incomplete = prepared.ended;
  if (prepared.ended) return result;
  double tokens = 0;
  for (const NeedleGroup& group : prepared.groups) {
    for (const NeedlePrompt& prompt : group.prompts) {
      tokens += static_cast<double>(prompt.tokens.size());
    }
  }
  watch.begin("needle", tokens * static_cast<double>(result.policies.size()));
  int64_t first_question = 0;
  for (const NeedleGroup& group : prepared.groups) {
    const auto done = run_group(model, group, first_question, &result, watch);
    if (!done.ok()) return done.error();
    result.incomplete = !*done;
    if (result.incomplete) break;
    first_question += static_cast<int64_t>(group.prompts.size());
  }
  return result;
}

Result<NeedleResult> measure_needle(const Model& model, const NeedleOptions& options,
                                    Watch& watch) {
  const auto prepared = prepare_needle(model, options, watch);
  if (!prepared.ok()) return prepared.error();
  return run_needle(model, *prepared, watch);
}

}  // namespace kvart::tools
