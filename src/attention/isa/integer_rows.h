// What kernels on integer codes have in common: rows of floats as integers of one step, and how
// sums of products join the output.
#pragma once

#include "attention/isa/vec.h"
#include "attention/kernels.h"
#include "format/rows.h"

namespace kvart::KVART_ISA {

// 127 * 256 + 127: the largest integer of two signed bytes whose negative is one too.
constexpr float largest_integer = 32639.0f;

// The step for integers whose largest value is that of a vector's lanes. A `sum` of the values and
// finite factors is NaN or infinite where one of them is, and the step then NaN.
inline float step_of(Vec largest, float sum, float& inverse) {
  const float top = lanes_max(largest);
  inverse = top > 1e-34f ? largest_integer / top : 0.0f;
  return (inverse > 0 ? top * (1 / largest_integer) : 0.0f) + (0 * top + 0 * sum);
}

// store_row(y, factor): the integers are those nearest to y[i] * factor, where integer * step ~
// x[i] * scales[i] (scales null: 1). Returns the sum of x[i] * offsets[i] (null: 1). n: a multiple
// of vec_lanes, at most max_head_dim.
template <class StoreRow>
inline float row_to_integers(const float* x, int n, const float* scales, const float* offsets,
                             float& step, StoreRow store_row) {
  float scaled[max_head_dim];
  Vec largest = broadcast(0.0f);
  Vec lanes = broadcast(0.0f);
  for (int i = 0; i < n; i += vec_lanes) {
    const Vec plain = load(x + i);
    const Vec value = scales == nullptr ? plain : mul(plain, load(scales + i));
    if (scales != nullptr) store(scaled + i, value);
    largest = larger(magnitude(value), largest);
    lanes = offsets == nullptr ? add(lanes, plain) : fma(plain, load(offsets + i), lanes);
  }
  const float sum = lanes_sum(lanes);
  float inverse;
  step = step_of(largest, sum, inverse);
  store_row(scales == nullptr ? x : scaled, broadcast(inverse));
  return sum;
}

// IntegerKernels::queries and ::probabilities for a layout: its Row has store(y, factor, n, length,
// row), which rounds n values of a row that has room for `length`.
template <class Row>
void queries(const float* q, int rows, int head_dim, const float* scales, const float* offsets,
             int16_t* integers, float* step, float* added) {
  for (int r = 0; r < rows; ++r, q += head_dim, integers += head_dim) {
    const auto store_row = [&](const float* y, Vec factor) {
      Row::store(y, factor, head_dim, head_dim, integers);
    };
    const float sum = row_to_integers(q, head_dim, scales, offsets, step[r], store_row);
    added[r] = offsets == nullptr ? 0 : sum;
  }
}

template <class Row>
void probabilities(const float* p, int rows, int tokens, const float* scales, const float* offsets,
                   int16_t* integers, float* step, float* added) {
  for (int r = 0; r < rows; ++r, p += score_stride, integers += score_stride) {
    const auto store_row = [&](const float* y, Vec factor) {
      Row::store(y, factor, tokens, score_stride, integers);
    };
    added[r] = row_to_integers(p, tokens, scales, offsets, step[r], store_row);
  }
}

inline void scale_scores(float* s, int rows, const float* scales) {
  for (int r = 0; r < rows; ++r) {
    float* row = s + static_cast<size_t>(r) * score_stride;
    for (int t = 0; t < score_stride; t += vec_lanes) {
      store(row + t, mul(load(row + t), load(scales + t)));
    }
  }
}

// How the sums of one row join its output: out[c] = factor * out[c] + step * scales[c] * sum[c] +
// added * offsets[c].
struct SumsToOutput {
  float factor;
  float step;
  float added;
  const float* scales;
  const float* offsets;

  void join(Vec sum, int channel, float* out) const {
    const Vec scaled = mul(load(out + channel), broadcast(factor));
    const Vec value = fma(sum, mul(broadcast(step), load(scales + channel)), scaled);
    store(out + channel, fma(broadcast(added), load(offsets + channel), value));
  }
};

alignas(64) inline constexpr struct Ones {
  float x[max_head_dim];
  constexpr Ones() : x() {
    for (float& one : x) one = 1;
  }
} ones;

inline SumsToOutput sums_to_output(const IntegerSums& what, int row, float step, float added) {
  return {what.factor == nullptr ? 1.0f : what.factor[row], step, what.add ? added : 0.0f,
          what.channel_scales == nullptr ? ones.x : what.channel_scales,
          what.add && what.channel_offsets != nullptr ? what.channel_offsets : ones.x};
}

}  // namespace kvart::KVART_ISA
