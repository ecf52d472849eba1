// Sealing: the f16 rows of a block that has filled become codes and parameters, the CPU's bytes
// exactly. One block of threads for each block, KV head and side; first each thread takes whole
// groups of values, in the order of the CPU, then words of codes.
#include "attention/cuda/codes.cuh"
#include "attention/cuda/instructions.cuh"
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

__host__ __device__ constexpr int padded(int d) {
  return d + 2;
}

__device__ Rows load_rows(const __half* from, int d, __half* shared) {
  for (int i = 8 * threadIdx.x; i < block_tokens * d; i += 8 * threads) {
    const uint4 x = *reinterpret_cast<const uint4*>(from + i);
    auto* to = reinterpret_cast<uint32_t*>(shared + i / d * padded(d) + i % d);
    to[0] = x.x;
    to[1] = x.y;
    to[2] = x.z;
    to[3] = x.w;
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

struct SealSide {
  int format;
  size_t slot;  // offset in a block
  size_t page;
};

struct SealJob {
  PlanView plan;
  SealSide sides[2];
  size_t slot_stride;  // of a KV head
  size_t page_stride;
  int head_dim;
};

// After the rows in shared memory: groups' scales and minima, of the format that has most.
template <class Format>
constexpr int parameters_of(int d) {
  using Values = typename Format::Values;
  const int groups = Values::axis == ScaleAxis::none ? 0
                     : Values::axis == ScaleAxis::channel
                         ? block_tokens / Values::group * d
                         : (d + Values::group - 1) / Values::group * block_tokens;
  return groups * (Values::has_minimum ? 2 : 1);
}

constexpr size_t shared_bytes(int d) {
  int most = 0;
#define KVART_FORMAT(name) \
  most = parameters_of<isa_cuda::name>(d) > most ? parameters_of<isa_cuda::name>(d) : most;
#include "kvart_formats.inc"
#undef KVART_FORMAT
  return sizeof(uint16_t) * (block_tokens * padded(d) + most);
}
static_assert(shared_bytes(256) <= 48 * 1024);

template <class Format>
__device__ void encode_side(const Rows& x, int d, uint16_t* shared, uint8_t* codes) {
  const int code_bytes = block_tokens * d * Format::Values::code_bits / 8;
  encode<Format>(x, d, shared, codes, reinterpret_cast<uint16_t*>(codes + code_bytes));
}

// head_dim: 0, or the layer's where it is known when this is compiled, which saves divisions.
template <int head_dim>
__global__ void __launch_bounds__(threads) seal(SealJob job) {
  let_next_kernel_start();
  const int place = job.plan.filled[blockIdx.x];
  if (place < 0) return;
  const BlockAddress block = job.plan.table[place];
  const SealSide side = job.sides[blockIdx.z];
  const int d = head_dim > 0 ? head_dim : job.head_dim;
  extern __shared__ uint4 shared[];
  auto* rows = reinterpret_cast<__half*>(shared);
  const uint8_t* from = block.slot + side.slot + blockIdx.y * job.slot_stride;
  const Rows x = load_rows(reinterpret_cast<const __half*>(from), d, rows);
  __syncthreads();
  auto* parameters = reinterpret_cast<uint16_t*>(rows + block_tokens * padded(d));
  uint8_t* codes = const_cast<uint8_t*>(block.page) + side.page + blockIdx.y * job.page_stride;
  enum Index {
#define KVART_FORMAT(name) index_##name,
#include "kvart_formats.inc"
#undef KVART_FORMAT
  };
  switch (side.format) {
#define KVART_FORMAT(name) \
  case index_##name:       \
    return encode_side<isa_cuda::name>(x, d, parameters, codes);
#include "kvart_formats.inc"
#undef KVART_FORMAT
    default:
      return;
  }
}

__global__ void decode_side(int format, int d, const uint8_t* codes, const uint16_t* parameters,
                            float* out) {
  for (int i = threadIdx.x; i < block_tokens * d; i += blockDim.x) {
    out[i] = value_at(format, codes, parameters, d, i / d, i % d);
  }
}

}  // namespace

cudaError_t launch_seal(int k_format, int v_format, const PlanView& plan, const LayerPlace& place,
                        int filled, cudaStream_t stream) {
  const SealJob job = {
      plan,
      {{k_format, place.slot_k, place.page_k}, {v_format, place.slot_v, place.page_v}},
      place.slot_stride,
      place.page_stride,
      place.head_dim};
  const dim3 grid(filled, place.kv_heads, 2);
  const size_t bytes = shared_bytes(place.head_dim);
  if (place.head_dim == 128) {
    seal<128><<<grid, threads, bytes, stream>>>(job);
  } else {
    seal<0><<<grid, threads, bytes, stream>>>(job);
  }
  return cudaGetLastError();
}

cudaError_t launch_decode(int format, int head_dim, const uint8_t* codes,
                          const uint16_t* parameters, float* out, cudaStream_t stream) {
  decode_side<<<1, 256, 0, stream>>>(format, head_dim, codes, parameters, out);
  return cudaGetLastError();
}

}  // namespace kvart::cuda
