// LayerError: what quantization does to a layer's K and V in service, summed over sampled blocks.
#pragma once

#include <cstdint>

namespace kvart {

// Sums over the values of the sampled blocks, all KV heads: squares of (decoded - value), and of
// the values, which are those that the cache held in full precision. sqrt(k_error_squares /
// k_squares) is the relative error of K. Where K has a constant offset in a channel, as most
// models' has, its square is in k_squares and makes that figure look small: compare it with itself
// over time and between layers, and use measure_format_errors to judge a format.
struct LayerError {
  double k_error_squares = 0, k_squares = 0;
  double v_error_squares = 0, v_squares = 0;
  int64_t blocks = 0;
};

}  // namespace kvart
