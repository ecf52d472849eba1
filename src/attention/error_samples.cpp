// Sums of squares of sampled blocks.
#include "attention/error_samples.h"

#include "base/check.h"

namespace kvart {

ErrorSamples::ErrorSamples(int interval, int layers, int max_rows, int kv_heads)
    : interval_(interval),
      kv_heads_(kv_heads),
      sums_(static_cast<size_t>(most_samples(interval, max_rows)) * 2 *
            static_cast<size_t>(kv_heads)),
      errors_(static_cast<size_t>(layers)) {}

// A step of one token may fill a block, so there are as many as rows at most.
uint64_t ErrorSamples::bytes(int interval, int max_rows, int kv_heads) {
  return static_cast<uint64_t>(most_samples(interval, max_rows)) * 2 *
         static_cast<uint64_t>(kv_heads) * sizeof(Sums);
}

void ErrorSamples::begin_batch() {
  if (interval_ > 0) first_sample_ = (filled_ + interval_ - 1) / interval_;
}

int ErrorSamples::sample_of(int64_t index) const {
  if (interval_ == 0 || (filled_ + index) % interval_ != 0) return -1;
  return static_cast<int>((filled_ + index) / interval_ - first_sample_);
}

void ErrorSamples::measure(int sample, Side side, int head, std::span<const float> values,
                           const float* decoded) {
  Sums sums;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    const double error = decoded[i] - value;
    sums.squares += value * value;
    sums.error_squares += error * error;
  }
  at(sample, side, head) = sums;
}

void ErrorSamples::add_layer(int layer, int kv_heads, std::span<const Piece> pieces,
                             std::span<const uint8_t> failed) {
  LayerError& to = errors_[static_cast<size_t>(layer)];
  for (const Piece& piece : pieces) {
    if (piece.sample < 0 || failed[static_cast<size_t>(piece.step)] != 0) continue;
    for (int head = 0; head < kv_heads; ++head) {
      const Sums& k = at(piece.sample, k_side, head);
      const Sums& v = at(piece.sample, v_side, head);
      to.k_error_squares += k.error_squares;
      to.k_squares += k.squares;
      to.v_error_squares += v.error_squares;
      to.v_squares += v.squares;
    }
    ++to.blocks;
  }
}

}  // namespace kvart
