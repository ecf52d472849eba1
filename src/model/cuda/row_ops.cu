// One block of threads for a row, or for a row's head.
#include <algorithm>

#include "model/cuda/row_ops.h"

namespace kvart::cuda {

namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;

__device__ float sum_of_warp(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

// Over all threads of the block, in every one of them.
__device__ float sum_of_block(float x) {
  __shared__ float of_warps[warps];
  x = sum_of_warp(x);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < warps; ++i) sum += of_warps[i];
  __syncthreads();
  return sum;
}

struct alignas(8) FourBfloats {
  __nv_bfloat162 low, high;
};

__global__ void embed(const __nv_bfloat16* table, const int* tokens, int hidden, float factor,
                      float* residual) {
  const size_t from = static_cast<size_t>(tokens[blockIdx.x]) * hidden;
  float* to = residual + static_cast<size_t>(blockIdx.x) * hidden;
  for (int i = 4 * threadIdx.x; i < hidden; i += 4 * threads) {
    const auto x = *reinterpret_cast<const FourBfloats*>(table + from + i);
    const float2 low = __bfloat1622float2(x.low);
    const float2 high = __bfloat1622float2(x.high);
    *reinterpret_cast<float4*>(to + i) = {factor * low.x, factor * low.y, factor * high.x,
                                          factor * high.y};
  }
}

// What a row is multiplied by before its weights.
__device__ float norm_factor(const float* x, int columns, float eps) {
  float squares = 0;
  for (int i = 4 * threadIdx.x; i < columns; i += 4 * threads) {
    const auto four = *reinterpret_cast<const float4*>(x + i);
    squares += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
  }
  return rsqrtf(sum_of_block(squares) / static_cast<float>(columns) + eps);
}

__global__ void norm(NormJob job, __nv_bfloat16* out) {
  const int row = job.rows == nullptr ? static_cast<int>(blockIdx.x) : job.rows[blockIdx.x];
  const float* x = job.x + static_cast<size_t>(row) * job.columns;
  const float factor = norm_factor(x, job.columns, job.eps);
  __nv_bfloat16* to = out + static_cast<size_t>(blockIdx.x) * job.columns;
  for (int i = 4 * threadIdx.x; i < job.columns; i += 4 * threads) {
    const auto four = *reinterpret_cast<const float4*>(x + i);
    const auto weight = *reinterpret_cast<const float4*>(job.weight + i);
    *reinterpret_cast<FourBfloats*>(to + i) = {
        __floats2bfloat162_rn(four.x * factor * weight.x, four.y * factor * weight.y),
        __floats2bfloat162_rn(four.z * factor * weight.z, four.w * factor * weight.w)};
  }
}

__global__ void add_norm(NormJob job, float* residual) {
  const size_t at = static_cast<size_t>(blockIdx.x) * job.columns;
  const float factor = norm_factor(job.x + at, job.columns, job.eps);
  for (int i = threadIdx.x; i < job.columns; i += threads) {
    residual[at + i] += job.x[at + i] * factor * job.weight[i];
  }
}

// A thread's channel of a head after its rotation. x: the head.
__device__ float turned(const HeadsJob& job, const float* x, const float* cos, const float* sin,
                        int channel) {
  const int half = job.rope_dims / 2;
  if (channel >= job.rope_dims) return x[channel];
  if (job.pairing == RopePairing::adjacent) {
    return x[channel] * cos[channel] + x[channel ^ 1] * sin[channel];
  }
  return channel < half
             ? x[channel] * cos[channel] - x[channel + half] * sin[channel]
             : x[channel] * cos[channel - half] + x[channel - half] * sin[channel - half];
}

// A warp for each head of a row.
__global__ void heads(HeadsJob job) {
  extern __shared__ float shared[];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int all = job.q_heads + 2 * job.kv_heads;
  const int head = static_cast<int>(blockIdx.y) * warps + warp;
  if (head >= all) return;
  const int row = static_cast<int>(blockIdx.x);
  const int d = job.head_dim;
  const size_t in_row = static_cast<size_t>(head) * d;
  const float* from = job.qkv + static_cast<size_t>(row) * all * d + in_row;
  const bool is_q = head < job.q_heads;
  const bool is_v = head >= job.q_heads + job.kv_heads;
  const float* weight = is_v ? nullptr : is_q ? job.q_norm : job.k_norm;
  float* x = shared + warp * d;
  float squares = 0;
  for (int c = lane; c < d; c += 32) {
    x[c] = from[c] + (job.bias == nullptr ? 0.0f : job.bias[in_row + c]);
    squares += x[c] * x[c];
  }
  if (weight != nullptr) {
    const float factor = rsqrtf(sum_of_warp(squares) / static_cast<float>(d) + job.eps);
    for (int c = lane; c < d; c += 32) x[c] *= factor * weight[c];
  }
  __syncwarp();
  const bool turns = job.cos != nullptr && !is_v;
  const int width = job.pairing == RopePairing::halves ? job.rope_dims / 2 : job.rope_dims;
  const size_t angles = turns ? static_cast<size_t>(job.positions[row]) * width : 0;
  for (int c = lane; c < d; c += 32) {
    const float y = turns ? turned(job, x, job.cos + angles, job.sin + angles, c) : x[c];
    if (is_q) {
      job.q[static_cast<size_t>(row) * job.q_heads * d + in_row + c] = __float2bfloat16_rn(y);
      continue;
    }
    const int kv_head = (head - job.q_heads) % job.kv_heads;
    __half* to = is_v ? job.v : job.k;
    to[(static_cast<size_t>(row) * job.kv_heads + kv_head) * d + c] = __float2half_rn(y);
  }
}

template <Activation activation>
__device__ float activated(float x) {
  if constexpr (activation == Activation::silu) return x / (1.0f + expf(-x));
  const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * u));
}

template <Activation activation>
__global__ void activate(const __nv_bfloat16* gate_up, int ffn, __nv_bfloat16* out) {
  const size_t row = blockIdx.x;
  const auto* gate = reinterpret_cast<const __nv_bfloat162*>(gate_up + 2 * row * ffn);
  const __nv_bfloat162* up = gate + ffn / 2;
  auto* to = reinterpret_cast<__nv_bfloat162*>(out + row * ffn);
  const int stride = static_cast<int>(gridDim.y) * threads;
  for (int i = static_cast<int>(blockIdx.y) * threads + threadIdx.x; i < ffn / 2; i += stride) {
    const float2 g = __bfloat1622float2(gate[i]);
    const float2 u = __bfloat1622float2(up[i]);
    to[i] =
        __floats2bfloat162_rn(activated<activation>(g.x) * u.x, activated<activation>(g.y) * u.y);
  }
}

__global__ void check_finite(const float* x, int columns, int* finite) {
  const float* row = x + static_cast<size_t>(blockIdx.y) * columns;
  const int stride = static_cast<int>(gridDim.x) * threads;
  bool all = true;
  for (int i = static_cast<int>(blockIdx.x) * threads + threadIdx.x; i < columns; i += stride) {
    all = all && isfinite(row[i]);
  }
  if (!all) finite[blockIdx.y] = 0;
}

__global__ void soft_cap(float cap, float* x, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < count) x[i] = cap * tanhf(x[i] / cap);
}

}  // namespace

void launch_embed(const __nv_bfloat16* table, const int* tokens, int rows, int hidden, float factor,
                  float* residual, cudaStream_t stream) {
  embed<<<rows, threads, 0, stream>>>(table, tokens, hidden, factor, residual);
}

void launch_norm(const NormJob& job, int count, __nv_bfloat16* out, cudaStream_t stream) {
  norm<<<count, threads, 0, stream>>>(job, out);
}

void launch_add_norm(const NormJob& added, int rows, float* residual, cudaStream_t stream) {
  add_norm<<<rows, threads, 0, stream>>>(added, residual);
}

void launch_heads(const HeadsJob& job, int rows, cudaStream_t stream) {
  const int all = job.q_heads + 2 * job.kv_heads;
  const dim3 grid(rows, (all + warps - 1) / warps);
  heads<<<grid, threads, sizeof(float) * warps * job.head_dim, stream>>>(job);
}

void launch_activate(Activation activation, const __nv_bfloat16* gate_up, int rows, int ffn,
                     __nv_bfloat16* out, cudaStream_t stream) {
  const dim3 grid(rows, (ffn / 2 + threads - 1) / threads);
  if (activation == Activation::silu) {
    activate<Activation::silu><<<grid, threads, 0, stream>>>(gate_up, ffn, out);
  } else {
    activate<Activation::gelu_tanh><<<grid, threads, 0, stream>>>(gate_up, ffn, out);
  }
}

void launch_check_finite(const float* x, int rows, int columns, int* finite, cudaStream_t stream) {
  const dim3 grid(std::min(16, (columns + threads - 1) / threads), rows);
  check_finite<<<grid, threads, 0, stream>>>(x, columns, finite);
}

void launch_soft_cap(float cap, float* x, size_t count, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((count + threads - 1) / threads);
  soft_cap<<<blocks, threads, 0, stream>>>(cap, x, count);
}

}  // namespace kvart::cuda
