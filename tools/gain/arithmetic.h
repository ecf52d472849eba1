// The arithmetic behind `kvart gain`: medians, ratios of rounds, and steps that were too long to
// take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/gain/gain.h"

namespace kvart::tools {

// A value of several rounds: the median, the least and the largest. All 0 without a round.
struct Spread {
  double middle = 0;
  double low = 0;
  double high = 0;

  [[nodiscard]] bool known() const { return middle > 0; }
};
Spread spread_of(std::vector<double> values);

// Seconds of a step of `wanted` sequences by the line through two measured ones. With one batch
// alone (half_batch 0) a step of as many as `batch` takes batch_s, and more take it in proportion.
double extrapolated_step_s(int64_t half_batch, double half_s, int64_t batch, double batch_s,
                           int64_t wanted);

// The most sequences, from `batch` to `most`, whose step takes at most allowed_s by that line.
int64_t batch_within(int64_t half_batch, double half_s, int64_t batch, double batch_s, int64_t most,
                     double allowed_s);

// What is left of the wanted contexts: whole blocks, no longer than the model's, each once.
struct CutContexts {
  std::vector<int64_t> contexts;  // ascending
  std::vector<std::string> notes;
};
// model_context: 0: not known. Error: one that is below `least`.
Result<CutContexts> cut_contexts(const std::vector<int64_t>& wanted, int64_t model_context,
                                 int64_t least);

struct GainFigures {
  Spread step_s;  // of all sequences that fit
  Spread tokens_per_s;
  Spread tokens_per_s_one;  // with one sequence
  Spread prefill_tokens_per_s;
  // Over full precision at the same context, round by round.
  Spread speed_up;
  Spread speed_up_one;
  double prefill_ratio = 0;
  double predicted_speed_up = 0;
  double predicted_speed_up_one = 0;
};
GainFigures figures_of(const GainPoint& point, const GainPoint& full);

// The point of full precision at the same context: the first one.
const GainPoint& full_point(const GainResult& result, const GainPoint& point);

}  // namespace kvart::tools
