// The obvious kernel: any K with any V, any head_dim, one block of threads for each query head, one
// block of tokens after the other. For pairs without a kernel of their own, and to compare with.
#include "attention/cuda/codes.cuh"
#include "attention/cuda/elements.cuh"
#include "attention/cuda/launch.h"

namespace kvart::cuda {

namespace {

constexpr int threads = 2 * block_tokens;
constexpr int channels_per_thread = 256 / threads;

// One side of one KV head of a block, sealed or in full precision.
struct SideView {
  const uint8_t* codes;
  const uint16_t* parameters;
  int format;  // < 0: rows of f16
  int head_dim;

  __device__ float at(int token, int c) const {
    if (format < 0) {
      return __half2float(reinterpret_cast<const __half*>(codes)[token * head_dim + c]);
    }
    return value_at(format, codes, parameters, head_dim, token, c);
  }
};

__device__ SideView side_of(const AttendJob& job, const BlockAddress& block, bool full, int kv_head,
                            bool v_side) {
  const LayerPlace& place = job.place;
  if (full) {
    const size_t offset = (v_side ? place.slot_v : place.slot_k) + kv_head * place.slot_stride;
    return {block.slot + offset, nullptr, -1, place.head_dim};
  }
  const size_t offset = (v_side ? place.page_v : place.page_k) + kv_head * place.page_stride;
  const uint8_t* codes = block.page + offset;
  const int parameters = v_side ? job.v_parameters : job.k_parameters;
  return {codes, reinterpret_cast<const uint16_t*>(codes + parameters),
          v_side ? job.v_format : job.k_format, place.head_dim};
}

// The score of token threadIdx.x / 2, of which each of two threads adds every other channel.
__device__ float score(const AttentionParams& params, const SideView& k, const float* q,
                       bool visible) {
  const int token = threadIdx.x / 2;
  float sum = 0.0f;
  if (visible) {
    for (int c = threadIdx.x % 2; c < k.head_dim; c += 2) sum += q[c] * k.at(token, c);
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum *= params.scale;
  if (params.soft_cap != 0.0f) sum = params.soft_cap * tanhf(sum / params.soft_cap);
  return visible ? sum : -INFINITY;
}

__global__ void __launch_bounds__(threads) attend(AttendJob job) {
  __shared__ float q[256];
  __shared__ float p[block_tokens];
  const int d = job.place.head_dim;
  const int kv_head = blockIdx.y / (job.params.q_heads / job.place.kv_heads);
  const int position = job.plan.rows[blockIdx.x].position;
  const BlockAddress* table = job.plan.table + job.plan.rows[blockIdx.x].table;
  const size_t at = (static_cast<size_t>(blockIdx.x) * job.params.q_heads + blockIdx.y) * d;
  for (int c = threadIdx.x; c < d; c += threads) q[c] = load_element(job.type, job.q, at + c);
  const int window = job.params.window;
  const int first = window > 0 && position >= window ? position - window + 1 : 0;
  const int own = position / block_tokens;
  float o[channels_per_thread] = {};
  float maximum = -INFINITY;
  float sum = 0.0f;
  for (int b = first / block_tokens; b <= own; ++b) {
    const BlockAddress block = table[b];
    const bool full = b == own || b < job.sink_blocks;
    const int begin = b * block_tokens < first ? first - b * block_tokens : 0;
    const int end = b == own ? position % block_tokens + 1 : block_tokens;
    const int token = threadIdx.x / 2;
    __syncthreads();
    const float s = score(job.params, side_of(job, block, full, kv_head, false), q,
                          token >= begin && token < end);
    if (threadIdx.x % 2 == 0) p[token] = s;
    __syncthreads();
    float new_maximum = maximum;
    for (int t = begin; t < end; ++t) new_maximum = fmaxf(new_maximum, p[t]);
    const float factor = expf(maximum - new_maximum);
    maximum = new_maximum;
    sum *= factor;
    for (float& x : o) x *= factor;
    const SideView v = side_of(job, block, full, kv_head, true);
    for (int t = begin; t < end; ++t) {
      const float weight = expf(p[t] - maximum);
      sum += weight;
#pragma unroll
      for (int i = 0; i < channels_per_thread; ++i) {
        const int c = threadIdx.x + i * threads;
        if (c < d) o[i] += weight * v.at(t, c);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < channels_per_thread; ++i) {
    const int c = threadIdx.x + i * threads;
    if (c < d) store_element(job.type, job.out, at + c, o[i] / sum);
  }
}

}  // namespace

cudaError_t launch_plain(const AttendJob& job, cudaStream_t stream) {
  attend<<<dim3(job.rows, job.params.q_heads), threads, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace kvart::cuda
