// The table of the model's kernels that each instruction set fills (isa/*.cpp).
#pragma once

#include <cstdint>

#include "base/cpu.h"
#include "model/file/weight_type.h"

namespace kvart {

// What the matrix product knows of 32 activations of a row besides their codes.
struct RowGroup {
  float scale;           // 0 for a group of zeros, NaN for one with a NaN or an Inf
  int32_t sum;           // of the codes
  int32_t half_sums[2];  // of the first and the last 16
};

// y[row][n] = Σ x[row][k]·w[n][k] + bias[n] for rows [row_begin, row_end), tiles [tile_begin,
// tile_end) of 16 outputs each.
struct MatmulArguments {
  const uint8_t* tiles;  // [output tiles][tile_bytes]
  int64_t tile_bytes;
  int64_t outputs;
  int64_t columns;
  const float* x;  // [rows][x_stride], for plain weights
  int64_t x_stride;
  const int8_t* codes;     // [rows][groups · 32], for packed weights
  const RowGroup* groups;  // [rows][groups]
  int64_t groups_per_row;
  const float* bias;  // [outputs], or null
  float* y;           // [rows][y_stride]
  int64_t y_stride;
};
using MatmulKernel = void (*)(const MatmulArguments& arguments, int64_t tile_begin,
                              int64_t tile_end, int64_t row_begin, int64_t row_end);

// A task of the matrix product has at most so many rows: their activations stay in the L2 cache
// while tile after tile passes.
inline constexpr int64_t row_block = 64;

struct OpsKernels {
  MatmulKernel (*matmul)(WeightType type);
  // x[columns] -> codes[groups · 32], the last group padded with zeros; groups[groups].
  void (*quantize_row)(const float* x, int64_t columns, int8_t* codes, RowGroup* groups);
  void (*rms_norm_row)(const float* x, const float* weight, float eps, int64_t count, float* out);
  void (*silu_mul)(float* gate, const float* up, int64_t count);
  void (*gelu_tanh_mul)(float* gate, const float* up, int64_t count);
  void (*soft_cap)(float cap, float* x, int64_t count);
  void (*scale)(float factor, float* x, int64_t count);
  void (*add)(float* x, const float* y, int64_t count);
  // cos, sin: [pairs], or for adjacent pairs [2 · pairs] with sin negated at even places.
  void (*rope_halves)(float* x, const float* cos, const float* sin, int64_t pairs);
  void (*rope_adjacent)(float* x, const float* cos, const float* sin, int64_t pairs);
};

namespace ops::isa_scalar {
OpsKernels kernels();
}
namespace ops::isa_avx2 {
OpsKernels kernels();
}
namespace ops::isa_avx512 {
OpsKernels kernels();
}

// Precondition: this machine has `isa`.
const OpsKernels& ops_kernels(Isa isa);

}  // namespace kvart
