// What an engine counts, and the bounds of its histograms.
#include <algorithm>
#include <numeric>

#include "kvart/engine.h"

namespace kvart {

namespace {

std::vector<double> seconds() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
          0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
}

std::vector<double> request_seconds() {
  return {0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480};
}

std::vector<double> token_seconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
          0.2,   0.3,    0.4,   0.5,  0.75,  1,    2.5,   5,   10};
}

std::vector<double> powers_of_two(int last) {
  std::vector<double> bounds;
  for (int i = 0; i <= last; ++i) bounds.push_back(static_cast<double>(int64_t{1} << i));
  return bounds;
}

}  // namespace

void Histogram::add(double value) {
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
  counts[static_cast<size_t>(bucket)] += 1;
  sum += value;
}

uint64_t Histogram::count() const {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

EngineStats::EngineStats()
    : time_to_first_token_s(seconds()),
      inter_token_s(token_seconds()),
      end_to_end_s(request_seconds()),
      queue_s(request_seconds()),
      prefill_s(request_seconds()),
      decode_s(request_seconds()),
      time_per_output_token_s(token_seconds()),
      step_tokens(powers_of_two(14)),
      prompt_lengths(powers_of_two(20)),
      completion_lengths(powers_of_two(20)) {}

}  // namespace kvart
