// What a transformer does to rows of activations between its matrix products, on the device. Rows
// are treated each by itself; sums are in f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "model/ops/ops.h"

namespace kvart::cuda {

// residual[row] = factor · table[tokens[row]]. hidden: a multiple of 4, here and below.
void launch_embed(const __nv_bfloat16* table, const int* tokens, int rows, int hidden, float factor,
                  float* residual, cudaStream_t stream);

// out[i] = norm(x[rows ? rows[i] : i]) · weight, i < count.
struct NormJob {
  const float* x;
  const int* rows;  // null: all in order
  const float* weight;
  float eps;
  int columns;
};
void launch_norm(const NormJob& job, int count, __nv_bfloat16* out, cudaStream_t stream);

// residual += norm(added) · weight
void launch_add_norm(const NormJob& added, int rows, float* residual, cudaStream_t stream);

// Queries, keys and values of rows [q | k | v] in f32: biases, norms of heads, rotary positions.
struct HeadsJob {
  const float* qkv;     // [rows][(q_heads + 2 kv_heads) head_dim]
  const float* bias;    // of a row, or null
  const float* q_norm;  // [head_dim], or null
  const float* k_norm;
  float eps;
  int q_heads, kv_heads, head_dim;
  // cosines and sines of all positions, as RopeAngles has them; null: queries and keys stay.
  const float* cos;
  const float* sin;
  int rope_dims;
  RopePairing pairing;
  const int* positions;  // [rows]
  __nv_bfloat16* q;      // [rows][q_heads][head_dim]
  __half* k;             // [rows][kv_heads][head_dim]
  __half* v;
};
void launch_heads(const HeadsJob& job, int rows, cudaStream_t stream);

// out = f(gate) · up of rows [gate | up] of `ffn` each. ffn: a multiple of 2.
void launch_activate(Activation activation, const __nv_bfloat16* gate_up, int rows, int ffn,
                     __nv_bfloat16* out, cudaStream_t stream);

// finite[row] = 0 where a value of the row is none or infinite. Precondition: all are 1.
void launch_check_finite(const float* x, int rows, int columns, int* finite, cudaStream_t stream);

// x = cap · tanh(x / cap)
void launch_soft_cap(float cap, float* x, size_t count, cudaStream_t stream);

}  // namespace kvart::cuda
