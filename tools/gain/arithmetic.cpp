// Medians, ratios and extrapolation.
#include "tools/gain/arithmetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kvart/format.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

// The same for each value of a list.
template <class Function>
std::vector<double> each(const std::vector<double>& values, const Function& function) {
  std::vector<double> results;
  results.reserve(values.size());
  for (const double value : values) results.push_back(function(value));
  return results;
}

// Round by round; those that only one of both has don't count.
std::vector<double> quotients(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> results;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) results.push_back(a[i] / b[i]);
  return results;
}

// Seconds of a step of all sequences that fit, one a round.
std::vector<double> steps_of_all(const GainPoint& point) {
  if (!point.decode_estimated()) return point.step_s;
  std::vector<double> seconds;
  for (size_t i = 0; i < point.step_s.size(); ++i) {
    const bool has_half = i < point.half_step_s.size();
    seconds.push_back(extrapolated_step_s(has_half ? point.half_batch : 0,
                                          has_half ? point.half_step_s[i] : 0, point.batch,
                                          point.step_s[i], point.sequences));
  }
  return seconds;
}

std::vector<double> rates_of_all(const GainPoint& point) {
  const auto sequences = static_cast<double>(point.sequences);
  return each(steps_of_all(point), [&](double seconds) { return sequences / seconds; });
}

std::vector<double> rates_of_one(const GainPoint& point) {
  return each(point.one_step_s, [](double seconds) { return 1 / seconds; });
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double middle =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {middle, values.front(), values.back()};
}

double extrapolated_step_s(int64_t half_batch, double half_s, int64_t batch, double batch_s,
                           int64_t wanted) {
  if (half_batch <= 0 || half_batch >= batch) {
    return batch_s * static_cast<double>(wanted) / static_cast<double>(batch);
  }
  // Noise must not make a larger step shorter.
  const double each_s = std::max(0.0, batch_s - half_s) / static_cast<double>(batch - half_batch);
  return batch_s + each_s * static_cast<double>(wanted - batch);
}

int64_t batch_within(int64_t half_batch, double half_s, int64_t batch, double batch_s, int64_t most,
                     double allowed_s) {
  int64_t within = batch;
  int64_t beyond = most + 1;
  while (beyond - within > 1) {
    const int64_t middle = within + (beyond - within) / 2;
    const double seconds = extrapolated_step_s(half_batch, half_s, batch, batch_s, middle);
    (seconds <= allowed_s ? within : beyond) = middle;
  }
  return within;
}

Result<CutContexts> cut_contexts(const std::vector<int64_t>& wanted, int64_t model_context,
                                 int64_t least) {
  CutContexts cut;
  for (const int64_t context : wanted) {
    const bool too_long = model_context > 0 && context > model_context;
    const int64_t kept = (too_long ? model_context : context) / block_tokens * block_tokens;
    if (kept < least) {
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("a context of {} tokens is too short to measure; use {} or more",
                      tokens_text(too_long ? model_context : context), tokens_text(least))};
    }
    if (too_long) {
      cut.notes.push_back(fmt::format("{} tokens are cut to {}: the model was made for {}.",
                                      tokens_text(context), tokens_text(kept),
                                      tokens_text(model_context)));
    } else if (kept != context) {
      cut.notes.push_back(fmt::format("{} tokens are cut to {}: whole blocks of {}.",
                                      tokens_text(context), tokens_text(kept), block_tokens));
    }
    cut.contexts.push_back(kept);
  }
  std::sort(cut.contexts.begin(), cut.contexts.end());
  cut.contexts.erase(std::unique(cut.contexts.begin(), cut.contexts.end()), cut.contexts.end());
  return cut;
}

GainFigures figures_of(const GainPoint& point, const GainPoint& full) {
  GainFigures figures;
  figures.step_s = spread_of(steps_of_all(point));
  figures.tokens_per_s = spread_of(rates_of_all(point));
  figures.tokens_per_s_one = spread_of(rates_of_one(point));
  const auto prefill_rates = [](const GainPoint& of) {
    const auto tokens = static_cast<double>(of.prefill_tokens);
    return each(of.prefill_s, [&](double seconds) { return tokens / seconds; });
  };
  figures.prefill_tokens_per_s = spread_of(prefill_rates(point));
  figures.speed_up = spread_of(quotients(rates_of_all(point), rates_of_all(full)));
  figures.speed_up_one = spread_of(quotients(rates_of_one(point), rates_of_one(full)));
  figures.prefill_ratio = spread_of(quotients(prefill_rates(point), prefill_rates(full))).middle;
  figures.predicted_speed_up = speed_up(point.predicted, full.predicted);
  figures.predicted_speed_up_one = speed_up(point.predicted_one, full.predicted_one);
  return figures;
}

const GainPoint& full_point(const GainResult& result, const GainPoint& point) {
  return *std::find_if(result.points.begin(), result.points.end(), [&](const GainPoint& one) {
    return one.context_tokens == point.context_tokens;
  });
}

}  // namespace kvart::tools
