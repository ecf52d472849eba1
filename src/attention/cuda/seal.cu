// Sealing: the f16 rows of a block that has filled become codes and parameters, the CPU's bytes
// exactly. One block of threads for each block and KV head; first each thread takes whole groups of
// values, in the order of the CPU, then bytes of codes.
#include "attention/cuda/codes.cuh"
#include "attention/cuda/launch.h"

namespace kvart::cuda {

namespace {

constexpr int threads = 256;

// Rows of f16 in shared memory, an odd number of words apart, so that a column of them lies in
// different banks.
struct Rows {
  const __half* values;
  int stride;

  __device__ float at(int token, int c) const { return __half2float(values[token * stride + c]); }
};

__host__ __device__ int padded(int d) {
  return d + 2;
}

__device__ Rows load_rows(const __half* from, int d, __half* shared) {
  for (int i = threadIdx.x; i < block_tokens * d / 2; i += threads) {
    const int token = 2 * i / d;
    *reinterpret_cast<__half2*>(shared + token * padded(d) + 2 * i % d) =
        *reinterpret_cast<const __half2*>(from + 2 * i);
  }
  return {shared, padded(d)};
}

// The range of one group, as its values come.
template <class Values>
__device__ isa_cuda::ScaleAndMinimum group_parameters(const Rows& x, int d, int group) {
  constexpr bool by_channel = Values::axis == ScaleAxis::channel;
  const int token = by_channel ? group / d * Values::group : group % block_tokens;
  const int channel = by_channel ? group % d : group / block_tokens * Values::group;
  const int size = by_channel || channel + Values::group <= d ? Values::group : d - channel;
  float low = Values::range_has_zero ? 0.0f : x.at(token, channel);
  float high = low;
  for (int i = Values::range_has_zero ? 0 : 1; i < size; ++i) {
    const float value = by_channel ? x.at(token + i, channel) : x.at(token, channel + i);
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  return Values::parameters(low, high);
}

template <class Format>
__device__ void encode(const Rows& x, int d, uint16_t* shared, uint8_t* codes,
                       uint16_t* parameters) {
  using Values = typename Format::Values;
  constexpr int bits = Values::code_bits;
  if constexpr (bits == 16) {
    for (int i = threadIdx.x; i < block_tokens * d; i += threads) {
      reinterpret_cast<uint16_t*>(codes)[i] =
          static_cast<uint16_t>(Values::code(x.at(i / d, i % d), 0.0f, 0.0f));
    }
  } else {
    const int groups = group_count<Values>(d);
    for (int group = threadIdx.x; group < groups; group += threads) {
      const isa_cuda::ScaleAndMinimum p = group_parameters<Values>(x, d, group);
      shared[group] = parameters[group] = p.scale;
      if (Values::has_minimum) shared[groups + group] = parameters[groups + group] = p.minimum;
    }
    __syncthreads();
    const int row_bytes = d * bits / 8;
    for (int i = threadIdx.x; i < block_tokens * row_bytes / 4; i += threads) {
      uint32_t word = 0;
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        const int token = (4 * i + byte) / row_bytes;
        const auto code_of = [&](int c) {
          const int group = group_of<Values>(d, token, c);
          const float minimum = Values::has_minimum ? half_float(shared[groups + group]) : 0.0f;
          return Values::code(x.at(token, c), half_float(shared[group]), minimum);
        };
        word |= row_byte<bits>(code_of, d, (4 * i + byte) % row_bytes) << (8 * byte);
      }
      reinterpret_cast<uint32_t*>(codes)[i] = word;
    }
  }
}

struct SealJob {
  PlanView plan;
  size_t slot;  // offsets of the side and of a KV head in a block
  size_t slot_stride;
  size_t page;
  size_t page_stride;
  int head_dim;
};

template <class Format>
__global__ void __launch_bounds__(threads) seal_side(SealJob job) {
  const int place = job.plan.filled[blockIdx.x];
  if (place < 0) return;
  const BlockAddress block = job.plan.table[place];
  const int d = job.head_dim;
  extern __shared__ uint4 shared[];
  auto* rows = reinterpret_cast<__half*>(shared);
  const uint8_t* from = block.slot + job.slot + blockIdx.y * job.slot_stride;
  const Rows x = load_rows(reinterpret_cast<const __half*>(from), d, rows);
  __syncthreads();
  uint8_t* codes = const_cast<uint8_t*>(block.page) + job.page + blockIdx.y * job.page_stride;
  const int code_bytes = block_tokens * d * Format::Values::code_bits / 8;
  encode<Format>(x, d, reinterpret_cast<uint16_t*>(rows + block_tokens * padded(d)), codes,
                 reinterpret_cast<uint16_t*>(codes + code_bytes));
}

template <class Format>
cudaError_t seal(const SealJob& job, int filled, int kv_heads, cudaStream_t stream) {
  using Values = typename Format::Values;
  const int d = job.head_dim;
  int groups = 0;
  if (Values::axis == ScaleAxis::channel) groups = block_tokens / Values::group * d;
  if (Values::axis == ScaleAxis::token) {
    groups = (d + Values::group - 1) / Values::group * block_tokens;
  }
  const size_t bytes = sizeof(uint16_t) * (block_tokens * padded(d) + 2 * groups);
  static_assert(sizeof(uint16_t) * (block_tokens * (256 + 2) + 2 * 4 * 256) <= 48 * 1024);
  seal_side<Format><<<dim3(filled, kv_heads), threads, bytes, stream>>>(job);
  return cudaGetLastError();
}

using Seal = cudaError_t (*)(const SealJob&, int, int, cudaStream_t);

constexpr Seal seals[] = {
#define KVART_FORMAT(name) &seal<isa_cuda::name>,
#include "kvart_formats.inc"
#undef KVART_FORMAT
};

__global__ void decode_side(int format, int d, const uint8_t* codes, const uint16_t* parameters,
                            float* out) {
  for (int i = threadIdx.x; i < block_tokens * d; i += blockDim.x) {
    out[i] = value_at(format, codes, parameters, d, i / d, i % d);
  }
}

}  // namespace

cudaError_t launch_seal(int format, const PlanView& plan, const LayerPlace& place, bool v_side,
                        int filled, cudaStream_t stream) {
  const SealJob job = {plan,
                       v_side ? place.slot_v : place.slot_k,
                       place.slot_stride,
                       v_side ? place.page_v : place.page_k,
                       place.page_stride,
                       place.head_dim};
  return seals[format](job, filled, place.kv_heads, stream);
}

cudaError_t launch_decode(int format, int head_dim, const uint8_t* codes,
                          const uint16_t* parameters, float* out, cudaStream_t stream) {
  decode_side<<<1, 256, 0, stream>>>(format, head_dim, codes, parameters, out);
  return cudaGetLastError();
}

}  // namespace kvart::cuda
