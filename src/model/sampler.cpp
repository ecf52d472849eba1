// Sampling: penalties, bias and bans, then temperature, min-p, top-k, top-p, then one draw.
#include "kvart/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace kvart {

namespace {
// A temperature below this is the most likely token: logits divided by it would overflow.
constexpr float smallest_temperature = 1e-5f;
constexpr float banned_logit = -std::numeric_limits<float>::infinity();

constexpr auto before = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
};

Error out_of_range(const char* name, double value, const char* range) {
  return Error{ErrorCode::invalid_argument, std::string(name) + " = " + std::to_string(value) +
                                                " is out of range; it takes " + range};
}
}  // namespace

Status SamplingOptions::check() const {
  if (!(temperature >= 0 && temperature <= 100))
    return out_of_range("temperature", temperature, "0 to 100");
  if (top_k < 0) return out_of_range("top_k", top_k, "0 (all) or more");
  if (!(top_p > 0 && top_p <= 1)) return out_of_range("top_p", top_p, "above 0 to 1");
  if (!(min_p >= 0 && min_p <= 1)) return out_of_range("min_p", min_p, "0 to 1");
  if (!(repetition_penalty > 0 && repetition_penalty <= 100)) {
    return out_of_range("repetition_penalty", repetition_penalty, "above 0 to 100");
  }
  if (!(presence_penalty >= -2 && presence_penalty <= 2)) {
    return out_of_range("presence_penalty", presence_penalty, "-2 to 2");
  }
  if (!(frequency_penalty >= -2 && frequency_penalty <= 2)) {
    return out_of_range("frequency_penalty", frequency_penalty, "-2 to 2");
  }
  for (const auto& [token, bias] : logit_bias) {
    if (!(bias >= -100 && bias <= 100)) {
      return out_of_range(("logit_bias of token " + std::to_string(token)).c_str(), bias,
                          "-100 to 100");
    }
  }
  return {};
}

Sampler::Sampler(SamplingOptions options)
    : own_(std::make_unique<Own>(Own{std::move(options), {}})),
      options_(&own_->options),
      buffers_(&own_->buffers),
      random_(options_->seed) {}

Sampler::Sampler(const SamplingOptions* options, uint64_t seed, SamplingBuffers* buffers)
    : options_(options), buffers_(buffers), random_(seed) {}

// Adds the tokens that came since the last call.
void Sampler::count(const SamplingContext& context) {
  for (; counted_ < context.tokens.size(); ++counted_) {
    const int32_t token = context.tokens[counted_];
    const auto [place, is_new] = place_in_seen_.try_emplace(token, seen_.size());
    if (is_new) seen_.push_back({token, 0});
    if (counted_ >= context.prompt_tokens) seen_[place->second].answer_count += 1;
  }
}

// Penalties, bias and bans.
void Sampler::adjust(std::span<const float> logits, const SamplingContext& context) {
  std::vector<float>& adjusted = buffers_->logits;
  adjusted.assign(logits.begin(), logits.end());
  const bool penalties = options_->repetition_penalty != 1 || options_->presence_penalty != 0 ||
                         options_->frequency_penalty != 0;
  if (penalties) {
    count(context);
    for (const auto& [token, answer_count] : seen_) {
      float& logit = adjusted[static_cast<size_t>(token)];
      logit =
          logit > 0 ? logit / options_->repetition_penalty : logit * options_->repetition_penalty;
      logit -= options_->frequency_penalty * static_cast<float>(answer_count);
      if (answer_count > 0) logit -= options_->presence_penalty;
    }
  }
  for (const auto& [token, bias] : options_->logit_bias)
    adjusted[static_cast<size_t>(token)] += bias;
  for (const std::span<const int32_t> tokens : context.banned) {
    for (const int32_t token : tokens) adjusted[static_cast<size_t>(token)] = banned_logit;
  }
}

int32_t Sampler::sample(std::span<const float> logits, const SamplingContext& context) {
  adjust(logits, context);
  const std::vector<float>& adjusted = buffers_->logits;
  const auto largest = std::max_element(adjusted.begin(), adjusted.end());
  if (*largest == banned_logit) return -1;
  if (options_->temperature < smallest_temperature) {
    return static_cast<int32_t>(largest - adjusted.begin());
  }
  keep_candidates(*largest);
  return draw();
}

// Those that top-k and min-p leave, with their weights.
void Sampler::keep_candidates(float largest) {
  const std::vector<float>& adjusted = buffers_->logits;
  std::vector<SamplingBuffers::Candidate>& candidates = buffers_->candidates;
  candidates.clear();
  for (size_t i = 0; i < adjusted.size(); ++i) {
    const double weight =
        std::exp((static_cast<double>(adjusted[i]) - static_cast<double>(largest)) /
                 static_cast<double>(options_->temperature));
    if (weight == 0 || weight < static_cast<double>(options_->min_p)) continue;
    candidates.push_back({adjusted[i], static_cast<int32_t>(i), weight});
  }
  const auto top_k = static_cast<size_t>(options_->top_k);
  if (top_k == 0 || top_k >= candidates.size()) return;
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(top_k),
                    candidates.end(), before);
  candidates.resize(top_k);
}

// One of the candidates, or of the most likely ones that make up top-p.
int32_t Sampler::draw() {
  std::vector<SamplingBuffers::Candidate>& candidates = buffers_->candidates;
  double sum = 0;
  for (const auto& candidate : candidates) sum += candidate.weight;
  if (options_->top_p < 1) {
    const double wanted = static_cast<double>(options_->top_p) * sum;
    size_t sorted = 0;
    size_t nucleus = 0;
    sum = 0;
    // Few tokens make up most of the probability: the others need not be sorted.
    while (nucleus < candidates.size() && (nucleus == 0 || sum < wanted)) {
      if (nucleus == sorted) {
        sorted = std::min(candidates.size(), std::max<size_t>(64, 4 * sorted));
        std::partial_sort(candidates.begin() + static_cast<ptrdiff_t>(nucleus),
                          candidates.begin() + static_cast<ptrdiff_t>(sorted), candidates.end(),
                          before);
      }
      sum += candidates[nucleus++].weight;
    }
    candidates.resize(nucleus);
  }
  // 53 bits of the generator, so that the draw is the same with every standard library.
  double point = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;
  for (const auto& candidate : candidates) {
    point -= candidate.weight;
    if (point < 0) return candidate.token;
  }
  return candidates.back().token;
}

}  // namespace kvart
