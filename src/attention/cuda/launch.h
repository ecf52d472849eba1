// The kernels, as the host calls them. All return what the launch said.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/attention.h"
#include "attention/cuda/plan.h"
#include "attention/cuda_attention.h"

namespace kvart::cuda {

// K and V of `rows` rows into their slots.
cudaError_t launch_append(const PlanView& plan, const LayerPlace& place, Element type, int rows,
                          const void* k, const void* v, cudaStream_t stream);

// Both sides of the blocks that are filled. Formats: indices in formats(). filled: entries of the
// plan's list.
cudaError_t launch_seal(int k_format, int v_format, const PlanView& plan, const LayerPlace& place,
                        int filled, cudaStream_t stream);

// One side of one KV head of a block to floats.
cudaError_t launch_decode(int format, int head_dim, const uint8_t* codes,
                          const uint16_t* parameters, float* out, cudaStream_t stream);

// What attention needs besides the plan.
struct AttendJob {
  PlanView plan;
  LayerPlace place;
  AttentionParams params;
  Element type;
  const void* q;
  void* out;
  int rows;
  int sink_blocks;
  int k_format;  // indices in formats()
  int v_format;
  int v_parameters;  // offset of the V side's parameters from its codes, and of K's
  int k_parameters;
};

struct PrefillJob {
  AttendJob attend;
  int k_bytes;  // of a sealed block's side
  int v_bytes;
};

// Whether there is a prefill kernel for layers of that K format and head_dim.
bool prefill_takes(int k_format, int head_dim);

// The rows that are in tiles. False: it does not take that job: queries of f32, or another layer.
bool launch_prefill_attention(const PrefillJob& job, int tiles, cudaStream_t stream,
                              cudaError_t* error);

cudaError_t launch_plain(const AttendJob& job, cudaStream_t stream);

// Blocks of threads of decode attention that run at a time on each multiprocessor.
constexpr int decode_blocks(int head_dim) {
  return head_dim <= 128 ? 3 : 1;
}
inline constexpr int decode_blocks_max = decode_blocks(0);

// Memory for the partial results of layers of that head_dim.
size_t decode_partial_bytes(int head_dim, int multiprocessors);

// The rows that are not in tiles. False: there is no kernel for that job. arrived: one counter for
// each block of threads, 0; they are 0 again behind it.
bool launch_decode_attention(const AttendJob& job, int multiprocessors, float* partial,
                             int* arrived, cudaStream_t stream, cudaError_t* error);

cudaError_t launch_copy(const BlockCopy* copies, int count, size_t bytes, cudaStream_t stream);

}  // namespace kvart::cuda
