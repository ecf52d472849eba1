// Policies of one side and of one layer, and their measurements.
#include "tools/eval/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kvart/memory_plan.h"

namespace kvart::tools {
namespace {

// The same first block in full precision for every policy, so that only the formats differ.
constexpr int sink_blocks = 1;
// Policies that run side by side where there are many: each has a cache of its own.
constexpr size_t policies_at_once = 8;

Result<NamedPolicy> policy_of(const std::string& word) {
  auto parsed = parse_policy(word);
  if (!parsed.ok()) return parsed.error();
  return NamedPolicy{word, std::move(parsed->policy)};
}

std::string pair_word(std::string_view k, std::string_view v) {
  return fmt::format("k={},v={}", k, v);
}

// Full precision in every layer but one.
std::string layer_word(int layer, int layers, const std::string& pair) {
  const std::string_view full = open_block_format().name;
  std::string word;
  if (layer > 0) word += fmt::format("0-{}:{},", layer - 1, full);
  word += fmt::format("{}:{}", layer, pair);
  if (layer + 1 < layers) word += fmt::format(",{}-:{}", layer + 1, full);
  return fmt::format("{},sink={}", word, sink_blocks);
}

Result<std::vector<NamedPolicy>> side_policies(const std::vector<std::string>& formats,
                                               std::vector<FormatSensitivity>* rows) {
  const std::string full(open_block_format().name);
  auto reference = policy_of(full);
  if (!reference.ok()) return reference.error();
  std::vector<NamedPolicy> policies = {std::move(*reference)};
  for (const std::string& format : formats) {
    const FormatInfo* info = find_format(format);
    if (info == nullptr || info->full_precision) {
      std::string known;
      for (const FormatInfo* one : kvart::formats()) {
        if (one->full_precision) continue;
        known += (known.empty() ? "" : ", ") + std::string(one->name);
      }
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("--formats: {} isn't a format that quantizes; use {}", format, known)};
    }
    rows->push_back({format, policies.size(), policies.size() + 1, policies.size() + 2});
    for (const std::string& pair :
         {pair_word(format, full), pair_word(full, format), pair_word(format, format)}) {
      auto policy = policy_of(fmt::format("{},sink={}", pair, sink_blocks));
      if (!policy.ok()) return policy.error();
      policies.push_back(std::move(*policy));
    }
  }
  return policies;
}

DivergenceOptions divergence_options(const SensitivityOptions& asked,
                                     std::vector<NamedPolicy> policies) {
  DivergenceOptions options;
  options.policies = std::move(policies);
  options.text = asked.text;
  options.context_tokens = asked.context_tokens;
  options.text_tokens = asked.text_tokens;
  options.threads = asked.threads;
  options.seed = asked.seed;
  return options;
}

NeedleOptions needle_options(const SensitivityOptions& asked,
                             const std::vector<NamedPolicy>& policies) {
  NeedleOptions options = asked.needle;
  options.policies = policies;
  options.threads = asked.threads;
  options.seed = asked.seed;
  return options;
}

// Before the sides are measured, not after them.
Status check_layer_tokens(const SensitivityOptions& asked,
                          const std::vector<NamedPolicy>& policies) {
  const int64_t least = shortest_window(policies);
  if (!asked.layers || asked.layer_tokens >= least) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("--layer-tokens {}: up to {} tokens nothing is read quantized; give {} "
                           "or more",
                           asked.layer_tokens, least - 1, least)};
}

struct LayerPolicy {
  size_t row = 0;  // of SensitivityResult::layers
  bool k = false;
  NamedPolicy policy;
};

Result<std::vector<LayerPolicy>> layer_policies(const Model& model, SensitivityResult* result) {
  const std::string full(open_block_format().name);
  const int layers = model.config().layers;
  std::vector<LayerPolicy> all;
  for (const std::string& format : result->asked.formats) {
    for (int layer = 0; layer < layers; ++layer) {
      result->layers.push_back({format, layer, 0, 0, {}, {}});
      for (const bool k : {true, false}) {
        const std::string pair = k ? pair_word(format, full) : pair_word(full, format);
        auto policy = policy_of(layer_word(layer, layers, pair));
        if (!policy.ok()) return policy.error();
        all.push_back({result->layers.size() - 1, k, std::move(*policy)});
      }
    }
  }
  return all;
}

// False: it was ended; the layers that are done stay.
Result<bool> measure_layers(const Model& model, SensitivityResult* result, Watch& watch) {
  const auto all = layer_policies(model, result);
  if (!all.ok()) return all.error();
  const NamedPolicy reference = result->divergence.policies[0].policy;
  for (size_t first = 0; first < all->size(); first += policies_at_once) {
    const size_t count = std::min(policies_at_once, all->size() - first);
    std::vector<NamedPolicy> policies = {reference};
    for (size_t i = 0; i < count; ++i) policies.push_back((*all)[first + i].policy);
    DivergenceOptions options = divergence_options(result->asked, std::move(policies));
    options.text_tokens = result->asked.layer_tokens;
    options.context_tokens =
        std::min(result->divergence.asked.context_tokens, result->asked.layer_tokens);
    const auto measured = measure_divergence(model, options, watch);
    if (!measured.ok()) return measured.error();
    if (measured->incomplete) {
      result->layers.resize((*all)[first].row);
      return false;
    }
    for (size_t i = 0; i < count; ++i) {
      const DivergenceSummary summary = summary_of(*measured, i + 1);
      const LayerPolicy& own = (*all)[first + i];
      LayerSensitivity& row = result->layers[own.row];
      (own.k ? row.kl_k : row.kl_v) = summary.kl_mean;
      (own.k ? row.k_interval : row.v_interval) = summary.kl_interval;
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> usual_sensitivity_formats(int head_dim) {
  constexpr int bits = 4;
  size_t least = std::numeric_limits<size_t>::max();
  for (const FormatInfo* format : formats()) {
    if (format->code_bits == bits) least = std::min(least, format->side_bytes(head_dim));
  }
  std::vector<std::string> names;
  for (const FormatInfo* format : formats()) {
    if (format->code_bits != bits || format->side_bytes(head_dim) != least) continue;
    names.emplace_back(format->name);
  }
  return names;
}

Result<SensitivityResult> measure_sensitivity(const Model& model, const SensitivityOptions& options,
                                              Watch& watch) {
  SensitivityResult result;
  result.asked = options;
  if (result.asked.formats.empty()) {
    result.asked.formats = usual_sensitivity_formats(model.config().head_dim);
  }
  const auto policies = side_policies(result.asked.formats, &result.formats);
  if (!policies.ok()) return policies.error();
  KVART_RETURN_IF_ERROR(check_layer_tokens(result.asked, *policies));
  std::optional<PreparedNeedle> needle;
  if (options.retrieval) {
    auto prepared = prepare_needle(model, needle_options(result.asked, *policies), watch);
    if (!prepared.ok() && options.must_retrieve) return prepared.error();
    if (prepared.ok()) {
      needle = std::move(*prepared);
    } else {
      result.no_retrieval = prepared.error().message;
    }
  }
  auto divergence = measure_divergence(model, divergence_options(result.asked, *policies), watch);
  if (!divergence.ok()) return divergence.error();
  result.divergence = std::move(*divergence);
  result.incomplete = result.divergence.incomplete;
  if (needle && !watch.should_end()) {
    auto asked = run_needle(model, *needle, watch);
    if (!asked.ok()) return asked.error();
    result.incomplete = result.incomplete || asked->incomplete;
    result.needle = std::move(*asked);
  }
  if (options.layers && !watch.should_end()) {
    const auto done = measure_layers(model, &result, watch);
    if (!done.ok()) return done.error();
    result.incomplete = result.incomplete || !*done;
  }
  const bool skipped = (needle && !result.needle) || (options.layers && result.layers.empty());
  result.incomplete = result.incomplete || skipped;
  return result;
}

DamageRatio damage_ratio(const SensitivityResult& result, const FormatSensitivity& format) {
  const BlockSums k = block_sums(result.divergence, format.k_only, 0, INT32_MAX);
  const BlockSums v = block_sums(result.divergence, format.v_only, 0, INT32_MAX);
  double k_sum = 0;
  double v_sum = 0;
  for (const double kl : k.kl) k_sum += kl;
  for (const double kl : v.kl) v_sum += kl;
  DamageRatio damage;
  using Limits = std::numeric_limits<double>;
  const double without_v = k_sum > 0 ? Limits::infinity() : Limits::quiet_NaN();
  damage.ratio = v_sum > 0 ? k_sum / v_sum : without_v;
  damage.interval = bootstrap_ratio(k.kl, v.kl, result.asked.seed);
  return damage;
}

std::optional<DamageRatio> answer_damage_ratio(const SensitivityResult& result,
                                               const FormatSensitivity& format) {
  if (!result.needle) return std::nullopt;
  std::vector<double> k = logprob_changes(*result.needle, format.k_only);
  std::vector<double> v = logprob_changes(*result.needle, format.v_only);
  // Where it was ended early, the questions that both were asked.
  k.resize(std::min(k.size(), v.size()));
  v.resize(k.size());
  double k_loss = 0;
  double v_loss = 0;
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] = -k[i];
    v[i] = -v[i];
    k_loss += k[i];
    v_loss += v[i];
  }
  if (k_loss <= 0 || v_loss <= 0) return std::nullopt;
  return DamageRatio{k_loss / v_loss, bootstrap_ratio(k, v, result.asked.seed)};
}

}  // namespace kvart::tools
