// The scaling rules of rotary positions: each gives a factor that divides a frequency, and a
// magnitude.
#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace kvart {

namespace {

constexpr std::array<std::string_view, 6> types{"none",   "linear", "dynamic",
                                                "llama3", "yarn",   "longrope"};

// Channels of a turn per `turns` over the original context: the (fractional) index of the frequency
// that turns so often.
double channel_of_turns(const ModelConfig& config, double turns) {
  const auto context = static_cast<double>(config.rope_scaling.original_context);
  return config.rope_dim * std::log(context / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(config.rope_theta));
}

// From 0, frequencies that stay, to 1, frequencies that are divided by the whole factor.
double yarn_ramp(const ModelConfig& config, int index) {
  const RopeScaling& scaling = config.rope_scaling;
  double low = channel_of_turns(config, scaling.beta_fast);
  double high = channel_of_turns(config, scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.rope_dim - 1));
  if (low == high) high += 0.001;
  return std::clamp((index - low) / (high - low), 0.0, 1.0);
}

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double magnitude_of(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  if (scaling.type == "yarn") {
    if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) {
      return yarn_magnitude(scaling.factor, scaling.mscale) /
             yarn_magnitude(scaling.factor, scaling.mscale_all_dim);
    }
    return yarn_magnitude(scaling.factor, 1);
  }
  if (scaling.type == "longrope" && scaling.factor > 1) {
    const auto original = static_cast<double>(scaling.original_context);
    return std::sqrt(1 + std::log(scaling.factor) / std::log(original));
  }
  return 1;
}

// What llama3 divides a frequency (radians per token) by.
double llama3_factor(const RopeScaling& scaling, double frequency) {
  const double turns =
      static_cast<double>(scaling.original_context) * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return scaling.factor;
  if (turns > scaling.high_freq_factor) return 1;
  const double smooth =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return 1 / ((1 - smooth) / scaling.factor + smooth);
}

double factor_of(const ModelConfig& config, int index) {
  const RopeScaling& scaling = config.rope_scaling;
  const double frequency = std::pow(config.rope_theta, -2.0 * index / config.rope_dim);
  if (scaling.type == "linear") return scaling.factor;
  if (scaling.type == "llama3") return llama3_factor(scaling, frequency);
  if (scaling.type == "yarn") {
    const double ramp = yarn_ramp(config, index);
    return 1 / (ramp / scaling.factor + (1 - ramp));
  }
  return 1;
}

// dynamic NTK: a larger base, so that the slowest frequency is stretched by what the context grew.
double dynamic_theta(const ModelConfig& config, int64_t context) {
  const RopeScaling& scaling = config.rope_scaling;
  const double grown = static_cast<double>(context) / static_cast<double>(scaling.original_context);
  if (grown <= 1) return config.rope_theta;
  const double dims = config.rope_dim;
  return config.rope_theta *
         std::pow(scaling.factor * grown - (scaling.factor - 1), dims / (dims - 2));
}

Status wrong(const ModelConfig& config, const std::string& what) {
  return Error{ErrorCode::invalid_file, fmt::format("{}: rope scaling of type {}: {}",
                                                    config.source, config.rope_scaling.type, what)};
}

}  // namespace

Status check_rope(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  if (std::find(types.begin(), types.end(), scaling.type) == types.end()) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: rope scaling of type {} isn't known; known: {}", config.source,
                             scaling.type, fmt::join(types, ", "))};
  }
  for (const auto* factors : {&scaling.short_factors, &scaling.long_factors}) {
    if (factors->empty()) continue;
    if (factors->size() != static_cast<size_t>(config.rope_dim / 2)) {
      return wrong(config, fmt::format("{} factors for {} frequencies", factors->size(),
                                       config.rope_dim / 2));
    }
    for (const double factor : *factors) {
      if (!(factor > 0 && factor < 1e6)) return wrong(config, fmt::format("a factor {}", factor));
    }
  }
  if (scaling.type == "none" || scaling.type == "linear") return {};
  // Factors from the file's own tensors leave nothing else to know.
  if (!scaling.short_factors.empty() && scaling.type == "llama3") return {};
  if (scaling.original_context <= 1) {
    return wrong(config, "the length that the model was trained with is missing");
  }
  if (scaling.type == "llama3" &&
      !(scaling.low_freq_factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor)) {
    return wrong(config, fmt::format("low_freq_factor {} and high_freq_factor {}; the first must "
                                     "be above 0 and below the second",
                                     scaling.low_freq_factor, scaling.high_freq_factor));
  }
  if (scaling.type == "dynamic" && config.rope_dim < 4) return wrong(config, "too few channels");
  return {};
}

RopeConfig rope_config(const ModelConfig& config, LayerRope rope, RopePairing pairing,
                       int64_t context) {
  KVART_CHECK(rope != LayerRope::none);
  RopeConfig out;
  out.pairing = pairing;
  out.dims = config.rope_dim;
  if (rope == LayerRope::local) {
    out.theta_base = config.rope_theta_local;
    return out;
  }
  const RopeScaling& scaling = config.rope_scaling;
  out.theta_base = scaling.type == "dynamic" ? dynamic_theta(config, context) : config.rope_theta;
  out.magnitude = magnitude_of(config);
  const bool longer = context > scaling.original_context;
  out.frequency_factors = longer ? scaling.long_factors : scaling.short_factors;
  if (!out.frequency_factors.empty()) return out;
  for (int i = 0; i < out.dims / 2; ++i) out.frequency_factors.push_back(factor_of(config, i));
  return out;
}

}  // namespace kvart
