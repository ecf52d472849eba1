// The arithmetic of attention for one instruction set: on plain floats, blind to formats. Every
// output element is computed in an order of its own that depends neither on the number of rows nor
// on the tile it is in, so one row gives the same bits in a decode step and in a prefill tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "format/kernels.h"

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

// Bytes that will be read next: products fetch them while they compute.
struct Upcoming {
  const uint8_t* at = nullptr;
  const uint8_t* end = nullptr;
};

struct AttentionKernels {
  // s[r][t] = sum over c of q[r][c] * k[t][c]. q: [rows][head_dim], k: [tokens][head_dim], s:
  // [rows][score_stride]. tokens is a multiple of score_group; head_dim one of 16.
  void (*scores)(const float* q, int rows, int head_dim, const float* k, int tokens, float* s,
                 Upcoming next);

  // One block's step of the online soft-max: replaces scores s [rows][score_stride] by
  // probabilities relative to the row's new maximum (0 outside visible[r]; visible null: all 64
  // tokens), updates the state, and writes the factor by which the row's earlier output shrinks. A
  // row that sees nothing keeps its state and gets factor 1.
  void (*softmax)(float* s, int rows, const VisibleRange* visible, float scale, float soft_cap,
                  SoftmaxState state, float* factor);

  // o[r][c] = factor[r] * o[r][c] + sum over t of p[r][t] * v[t][c], tokens in order. factor
  // null: 1. p: [rows][score_stride], v: [tokens][head_dim], o: [rows][head_dim].
  void (*weighted_sum)(const float* p, int rows, int head_dim, const float* v, int tokens,
                       const float* factor, float* o, Upcoming next);

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

// What IntegerKernels::sums adds to the output.
struct IntegerSums {
  const void* v;  // columns of codes (format/kernels.h)
  int tokens;
  int first_token;  // of the probabilities
  int head_dim;
  int first_channel;  // channels [first_channel, end_channel), both multiples of 16
  int end_channel;
  const float* channel_scales;   // [head_dim]; null: 1
  const float* channel_offsets;  // [head_dim]; null: 1
  bool add;                      // also `added` * channel_offsets
  const float* factor;           // [rows], by which the output shrinks first; null: 1
};

// Scores and sums on integer codes (format/kernels.h). Queries and probabilities are taken as
// integers of two signed bytes, 256 * high + low, times a step of their row, 1/32639 of its largest
// value; the products are summed exactly, so the results are the same bits however they are tiled,
// and on every instruction set but for the rounding of a few last operations. NaN and infinities
// make their row NaN. Where codes are words, a row of n integers is n words; where they are bytes,
// it is the n high bytes, then the n low ones.
struct IntegerKernels {
  CodeLayout layout;

  // integers[r][c] * step[r] ~ q[r][c] * scales[c] (scales null: 1); added[r] = sum over c of
  // q[r][c] * offsets[c] (null: 0). q, integers: [rows][head_dim].
  void (*queries)(const float* q, int rows, int head_dim, const float* scales, const float* offsets,
                  int16_t* integers, float* step, float* added);

  // s[r][t] = step[r] * (sum over c of q[r][c] * k[t][c]) + added[r]. k: [tokens][head_dim], rows
  // of codes; s: [rows][score_stride]; tokens is a multiple of 16.
  void (*scores)(const int16_t* q, const float* step, const float* added, int rows, int head_dim,
                 const void* k, int tokens, float* s, Upcoming next);

  // s[r][t] *= scales[t] for all 64 tokens.
  void (*scale_scores)(float* s, int rows, const float* scales);

  // integers[r][t] * step[r] ~ p[r][t] * scales[t] (scales null: 1); added[r] = sum over t of
  // p[r][t] * offsets[t] (null: 1). p, integers: [rows][score_stride]; tokens is a multiple of 16.
  void (*probabilities)(const float* p, int rows, int tokens, const float* scales,
                        const float* offsets, int16_t* integers, float* step, float* added);

  // o[r][c] = factor[r] * o[r][c] + step[r] * channel_scales[c] * (sum over t of p[r][t] * v[t][c])
  // + added[r] * channel_offsets[c], the last term only if `add`. p: [rows][score_stride], o:
  // [rows][head_dim].
  void (*sums)(const int16_t* p, const float* step, const float* added, int rows,
               const IntegerSums& what, float* o, Upcoming next);
};

// isa must be one that this machine has.
const IntegerKernels& integer_kernels(Isa isa);
const AttentionKernels& attention_kernels(Isa isa);

}  // namespace kvart
