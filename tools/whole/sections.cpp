// What each section asks for, and what is found of each policy.
#include "sections.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/bytes_report.h"
#include "tools/eval/divergence.h"
#include "tools/eval/needle.h"
#include "tools/eval/running.h"
#include "tools/eval/sensitivity.h"
#include "tools/gain/arithmetic.h"
#include "tools/gain/gain.h"
#include "tools/key_errors.h"
#include "tools/plan_inputs.h"

namespace kvart::tools {
namespace {

constexpr int64_t gain_contexts[] = {1024, 4096, 16384, 32768};
constexpr int64_t short_contexts[] = {1024, 2048};
// Tokens of the text in a run that has little time.
constexpr int64_t short_text_tokens = 1024;
// Of which the keys are looked at: four blocks.
constexpr int64_t key_tokens = 4 * block_tokens;

// The contexts that the model was made for; the longest one of `wanted` may be that itself.
std::vector<int64_t> contexts_of(const Model& model, std::span<const int64_t> wanted) {
  const int64_t longest = model.config().context_length;
  std::vector<int64_t> contexts;
  for (const int64_t context : wanted) {
    if (longest == 0 || context <= longest) contexts.push_back(context);
  }
  if (contexts.empty()) contexts.push_back(longest);
  return contexts;
}

// The context of a window of the text in a run that has little time.
int64_t short_text_context(const Model& model) {
  const int64_t longest = model.config().context_length;
  return longest == 0 ? short_text_tokens : std::min(longest, short_text_tokens);
}

Result<Report> bytes_section(SectionInput& input, Watch& /*watch*/) {
  BytesOptions options;
  options.model = input.options.model;
  return bytes_report(options);
}

// Of the longest context at which enough was measured.
void add_gain(const GainResult& result, Findings& findings) {
  std::vector<const GainPoint*> points;
  for (const GainPoint& point : result.points) {
    const GainPoint& full = full_point(result, point);
    if (&point == &full || full.sequences == 0 || !says_enough(doubt_of(point, full))) continue;
    // Points come by context.
    if (!points.empty() && points[0]->context_tokens != point.context_tokens) points.clear();
    points.push_back(&point);
  }
  for (const GainPoint* point : points) {
    const GainPoint& full = full_point(result, *point);
    const Spread speed_up = figures_of(*point, full).speed_up;
    PolicyFindings& found = findings.of(point->word);
    found.sequences_ratio =
        static_cast<double>(point->sequences) / static_cast<double>(full.sequences);
    found.speed_up = speed_up.middle;
    found.speed_up_low = speed_up.low;
    found.speed_up_high = speed_up.high;
    found.speed_up_estimated = point->decode_estimated() || full.decode_estimated();
    findings.gain_context_tokens = point->context_tokens;
  }
}

Result<Report> gain_section(SectionInput& input, Watch& watch) {
  GainOptions options;
  options.policies = input.options.caches.policies;
  options.contexts.assign(std::begin(gain_contexts), std::end(gain_contexts));
  options.kv_memory_bytes = input.options.caches.kv_memory_bytes;
  options.kv_memory_given = input.options.caches.kv_memory_given;
  options.available_bytes = input.options.caches.available_bytes;
  options.threads = input.options.threads;
  const auto result = measure_gain(input.model, options, watch);
  if (!result.ok()) return result.error();
  input.read_bytes_per_s = result->read_bytes_per_s;
  const std::string why = why_nothing(*result);
  if (!why.empty()) return Error{ErrorCode::io, why};
  add_gain(*result, input.findings);
  return gain_report(*result);
}

Result<Report> plan_section(SectionInput& input, Watch& /*watch*/) {
  PlanOptions options;
  options.model = input.options.model;
  options.kv_memory = std::to_string(input.options.caches.kv_memory_bytes);
  if (input.read_bytes_per_s > 0) {
    options.bandwidth = fmt::format("{:.0f}MB/s", input.read_bytes_per_s / 1e6);
  }
  for (const int64_t context : contexts_of(input.model, gain_contexts)) {
    options.contexts.push_back(std::to_string(context));
  }
  options.policies = input.options.caches.words;
  auto plan = plan_report(options);
  if (!plan.ok()) return plan.error();
  return std::move(plan->report);
}

Result<Report> divergence_section(SectionInput& input, Watch& watch) {
  DivergenceOptions options;
  options.policies = input.options.caches.policies;
  if (input.options.full) {
    std::vector<std::string> words = input.options.caches.words;
    for (const Preset& preset : presets()) words.emplace_back(preset.name);
    auto all = parse_policies(words);
    if (!all.ok()) return all.error();
    options.policies = std::move(*all);
  } else {
    options.text_tokens = short_text_tokens;
    options.context_tokens = short_text_context(input.model);
  }
  auto text = read_evaluation_text("");
  if (!text.ok()) return text.error();
  options.text = std::move(*text);
  options.threads = input.options.threads;
  options.seed = input.options.seed;
  const auto result = measure_divergence(input.model, options, watch);
  if (!result.ok()) return result.error();
  for (size_t i = 1; i < result->policies.size(); ++i) {
    const PolicyDivergence& policy = result->policies[i];
    // Without a quantized read the divergence is 0, whatever the policy.
    if (policy.kl.empty() || (policy.quantizes && !is_enough(*result, i))) continue;
    PolicyFindings& found = input.findings.of(policy.policy.word);
    found.share = policy.bytes.share();
    found.kl = summary_of(*result, i).kl_mean;
    found.close = *found.kl <= close_kl;
  }
  return divergence_report(*result);
}

Result<Report> keys_section(SectionInput& input, Watch& watch) {
  auto text = read_evaluation_text("");
  if (!text.ok()) return text.error();
  const ModelConfig& config = input.model.config();
  const int64_t most =
      config.context_length == 0 ? key_tokens : std::min(config.context_length, key_tokens);
  const auto tokens = first_tokens(input.model, text->text, most, watch);
  if (!tokens.ok()) return tokens.error();
  FormatErrors errors;
  if (tokens->has_value()) {
    watch.begin("keys", static_cast<double>(most));
    auto measured = measure_format_errors(input.model, **tokens, input.options.threads, [&] {
      watch.advance(block_tokens);
      return !watch.should_end();
    });
    if (!measured.ok()) return measured.error();
    errors = std::move(*measured);
  }
  if (errors.tokens == 0) return Error{ErrorCode::io, "it was ended before a block was full"};
  const auto keys = key_errors(errors.formats, config, input.options.caches.policies);
  if (!keys.ok()) return keys.error();
  if (keys->empty()) return Error{ErrorCode::invalid_argument, "no policy quantizes K"};
  Report report = key_errors_report(config, *keys, errors.tokens);
  report.incomplete = errors.tokens + block_tokens <= static_cast<int64_t>((*tokens)->size());
  return report;
}

Result<Report> needle_section(SectionInput& input, Watch& watch) {
  NeedleOptions options;
  options.policies = input.options.caches.policies;
  if (!input.options.full) options.contexts = contexts_of(input.model, short_contexts);
  options.threads = input.options.threads;
  options.seed = input.options.seed;
  const auto result = measure_needle(input.model, options, watch);
  if (!result.ok()) return result.error();
  add_retrieval(*result, &input.findings);
  return needle_report(*result);
}

Result<Report> sensitivity_section(SectionInput& input, Watch& watch) {
  SensitivityOptions options;
  auto text = read_evaluation_text("");
  if (!text.ok()) return text.error();
  options.text = std::move(*text);
  if (input.options.full) {
    options.layers = true;
  } else {
    options.text_tokens = short_text_tokens;
    options.context_tokens = short_text_context(input.model);
    options.needle.contexts = contexts_of(input.model, std::span(short_contexts).first(1));
  }
  options.threads = input.options.threads;
  options.seed = input.options.seed;
  const auto result = measure_sensitivity(input.model, options, watch);
  if (!result.ok()) return result.error();
  return sensitivity_report(*result);
}

void forget_gain(Findings& findings) {
  findings.gain_context_tokens = 0;
  for (PolicyFindings& policy : findings.policies) {
    policy.sequences_ratio = policy.speed_up = policy.speed_up_low = policy.speed_up_high = 0;
    policy.speed_up_estimated = false;
  }
}

void forget_retrieval(Findings& findings) {
  for (PolicyFindings& policy : findings.policies) {
    policy.retrieval = Retrieval::unknown;
    policy.found = policy.full_found = 0;
  }
}

void forget_divergence(Findings& findings) {
  for (PolicyFindings& policy : findings.policies) {
    policy.kl.reset();
    policy.close = false;
  }
}

// Measured first what says most: a run whose time is over lacks the end.
constexpr SectionKind kinds[] = {
    {"bytes", "Bytes, exactly", 0, bytes_section, nullptr},
    {"gain", "What it gains: sequences, decode, prefill", 0.32, gain_section, forget_gain},
    {"plan", "What bytes alone would allow", 0, plan_section, nullptr},
    {"needle", "What it costs: facts in a long text", 0.32, needle_section, forget_retrieval},
    {"divergence", "What it costs: divergence from full precision", 0.16, divergence_section,
     forget_divergence},
    {"keys", "What formats lose of the keys", 0.04, keys_section, nullptr},
    {"sensitivity", "K against V", 0.18, sensitivity_section, nullptr},
};

}  // namespace

std::span<const SectionKind> section_kinds() {
  return kinds;
}

}  // namespace kvart::tools
