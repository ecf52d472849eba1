// The arithmetic of attention for one instruction set: on plain floats, blind to formats. Every
// output element is computed in an order of its own that depends neither on the number of rows nor
// on the tile it is in, so one row gives the same bits in a decode step and in a prefill tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace kvart {

// Scores of a row are kept for one block of tokens; rows of K are taken in groups of this many.
inline constexpr int score_stride = 64;
inline constexpr int score_group = 4;

// Tokens of a block that a row sees: [first, end).
struct VisibleRange {
  int16_t first = 0;
  int16_t end = 0;
};

// The soft-max of a row so far. Maxima are in base-2 units: log2(e) * score.
struct SoftmaxState {
  float* maximum;  // [rows]
  float* sum;      // [rows]
};

struct AttentionKernels {
  // s[r][t] = sum over c of q[r][c] * k[t][c]. q: [rows][head_dim], k: [tokens][head_dim], s:
  // [rows][score_stride]. tokens is a multiple of score_group; head_dim one of 16.
  void (*scores)(const float* q, int rows, int head_dim, const float* k, int tokens, float* s);

  // One block's step of the online soft-max: replaces scores s [rows][score_stride] by
  // probabilities relative to the row's new maximum (0 outside visible[r]; visible null: all 64
  // tokens), updates the state, and writes the factor by which the row's earlier output shrinks. A
  // row that sees nothing keeps its state and gets factor 1.
  void (*softmax)(float* s, int rows, const VisibleRange* visible, float scale, float soft_cap,
                  SoftmaxState state, float* factor);

  // o[r][c] = factor[r] * o[r][c] + sum over t of p[r][t] * v[t][c], tokens in order. factor
  // null: 1. p: [rows][score_stride], v: [tokens][head_dim], o: [rows][head_dim].
  void (*weighted_sum)(const float* p, int rows, int head_dim, const float* v, int tokens,
                       const float* factor, float* o);

  // Adds the partial result of a span to the total of the spans before it. A row that saw nothing
  // in the span is left as it is.
  void (*merge)(int rows, int head_dim, SoftmaxState total, float* total_o, SoftmaxState part,
                const float* part_o);

  // out[c] = o[c] / sum, never -0.
  void (*divide)(const float* o, float sum, int head_dim, float* out);

  // Rounds to f16, nearest even; what f16 can't hold, NaN and Inf become 0. Returns whether all
  // could be held. count is a multiple of 16.
  bool (*to_half)(const float* x, size_t count, uint16_t* out);
};

// isa must be one that this machine has.
const AttentionKernels& attention_kernels(Isa isa);

}  // namespace kvart
