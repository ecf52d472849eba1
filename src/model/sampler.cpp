// Sampling: penalty, then temperature, top-k, min-p, top-p, then one draw.
#include "kvart/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvart {

namespace {
// A temperature below this is the most likely token: logits divided by it would overflow.
constexpr float smallest_temperature = 1e-5f;

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
  if (!(std::abs(presence_penalty) <= 2)) {
    return out_of_range("presence_penalty", presence_penalty, "-2 to 2");
  }
  if (!(std::abs(frequency_penalty) <= 2)) {
    return out_of_range("frequency_penalty", frequency_penalty, "-2 to 2");
  }
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0 || !(std::abs(bias) <= 100))
      return out_of_range("logit_bias", bias, "-100 to 100");
  }
  return {};
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

int32_t Sampler::sample(std::span<const float> logits, std::span<const int32_t> seen) {
  logits_.assign(logits.begin(), logits.end());
  if (options_.repetition_penalty != 1) {
    std::vector<int32_t> once(seen.begin(), seen.end());
    std::sort(once.begin(), once.end());
    once.erase(std::unique(once.begin(), once.end()), once.end());
    for (const int32_t token : once) {
      float& logit = logits_[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    }
  }
  if (options_.temperature < smallest_temperature) {
    return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
  }
  candidates_.clear();
  for (size_t i = 0; i < logits_.size(); ++i)
    candidates_.push_back({logits_[i], static_cast<int32_t>(i)});
  return draw();
}

int32_t Sampler::draw() {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  std::sort(candidates_.begin(), candidates_.end(), before);
  size_t kept = candidates_.size();
  if (options_.top_k > 0) kept = std::min(kept, static_cast<size_t>(options_.top_k));
  weights_.clear();
  double total = 0;
  for (size_t i = 0; i < kept; ++i) {
    const double weight = std::exp(
        (static_cast<double>(candidates_[i].logit) - candidates_[0].logit) / options_.temperature);
    if (i > 0 && weight < options_.min_p) break;
    weights_.push_back(weight);
    total += weight;
  }
  double sum = 0;
  size_t nucleus = 0;
  while (nucleus < weights_.size() && (nucleus == 0 || sum < options_.top_p * total))
    sum += weights_[nucleus++];
  // 53 bits of the generator, so that the draw is the same with every standard library.
  double point = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;
  for (size_t i = 0; i < nucleus; ++i) {
    point -= weights_[i];
    if (point < 0) return candidates_[i].token;
  }
  return candidates_[nucleus - 1].token;
}

}  // namespace kvart
