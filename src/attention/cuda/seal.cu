// Sealing: the f16 rows of a block that has filled become codes and parameters, the CPU's bytes
// exactly. One block of threads for each block, KV head and side: rows go to shared memory, then
// each group's range becomes its parameters, then each thread makes whole words of codes from the
// channels whose codes share them, so that every code is worked out once.
#include "attention/cuda/codes.cuh"
#include "attention/cuda/instructions.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/tiles.cuh"

namespace kvart::cuda {

namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;
constexpr int warp_rows = block_tokens / warps;

// Rows of f16 in shared memory, so far apart that half a warp reads four channels of as many rows
// from different banks.
__host__ __device__ constexpr int padded(int d) {
  return d + 4;
}

struct Rows {
  const __half* values;
  int stride;

  __device__ const __half* at(int token, int c) const { return values + token * stride + c; }
  __device__ uint2 four(int token, int c) const {
    return *reinterpret_cast<const uint2*>(at(token, c));
  }
};

// What the threads know of a side, in shared memory.
struct Memory {
  __half* rows;       // [64][padded(d)]
  uint4* ranges;      // [warps][d / 4]: of some rows and four channels
  float* scale;       // [groups], as are those below
  float* reciprocal;  // of the scale; of 0: 0
  float* minimum;
};

__host__ __device__ constexpr int rows_bytes(int d) {
  return static_cast<int>(sizeof(__half)) * block_tokens * padded(d);
}
__host__ __device__ constexpr int ranges_bytes(int d) {
  return static_cast<int>(sizeof(uint4)) * warps * d / 4;
}
// Of any format: scales of 32 values each.
__host__ __device__ constexpr int groups_max(int d) {
  return block_tokens * ((d + 31) / 32);
}
__host__ __device__ constexpr int shared_bytes(int d) {
  return rows_bytes(d) + ranges_bytes(d) + 3 * static_cast<int>(sizeof(float)) * groups_max(d);
}
static_assert(shared_bytes(256) <= 48 * 1024);

__device__ Memory memory_of(uint8_t* shared, int d) {
  auto* scale = reinterpret_cast<float*>(shared + rows_bytes(d) + ranges_bytes(d));
  return {reinterpret_cast<__half*>(shared), reinterpret_cast<uint4*>(shared + rows_bytes(d)),
          scale, scale + groups_max(d), scale + 2 * groups_max(d)};
}

// How the threads share pieces of rows: each takes the same one of every `step`-th row.
struct Share {
  int first;
  int step;
  int piece;

  // pieces: of a row, at most as many as there are threads.
  __device__ explicit Share(int pieces)
      : first(static_cast<int>(threadIdx.x) / pieces),
        step(threads / pieces),
        piece(static_cast<int>(threadIdx.x) % pieces) {
    if (first >= step) first = block_tokens;  // nothing is left for this thread
  }
};

__device__ Rows load_rows(const __half* from, int d, __half* shared) {
  const Share share(d / 8);
#pragma unroll 4
  for (int row = share.first; row < block_tokens; row += share.step) {
    const uint4 x = *reinterpret_cast<const uint4*>(from + row * d + 8 * share.piece);
    auto* to = reinterpret_cast<uint2*>(shared + row * padded(d) + 8 * share.piece);
    to[0] = {x.x, x.y};
    to[1] = {x.z, x.w};
  }
  return {shared, padded(d)};
}

__device__ uint32_t least_of(uint32_t a, uint32_t b) {
  const __half2 c =
      __hmin2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}
__device__ uint32_t most_of(uint32_t a, uint32_t b) {
  const __half2 c =
      __hmax2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}
__device__ float low_float(uint32_t x) {
  return half_float(static_cast<uint16_t>(x));
}
__device__ float high_float(uint32_t x) {
  return half_float(static_cast<uint16_t>(x >> 16));
}
__device__ float2 floats_of(uint32_t x) {
  return {low_float(x), high_float(x)};
}

// Of pairs of values.
struct Range {
  uint32_t low;
  uint32_t high;

  __device__ explicit Range(uint32_t x) : low(x), high(x) {}
  __device__ void add(uint32_t x) { add(x, x); }
  __device__ void add(uint32_t other_low, uint32_t other_high) {
    low = least_of(low, other_low);
    high = most_of(high, other_high);
  }
  __device__ float least() const { return fminf(low_float(low), high_float(low)); }
  __device__ float most() const { return fmaxf(low_float(high), high_float(high)); }
};

// A group's parameters from its range, to the block and to shared memory. first: its first value;
// the others are `stride` apart. Of zeros of both signs the first counts, as in the CPU's order.
template <class Values>
__device__ void set_parameters(int group, int groups, float low, float high, const __half* first,
                               int stride, const Memory& memory, uint16_t* parameters) {
  if (Values::range_has_zero) {
    low = low < 0.0f ? low : 0.0f;
    high = high > 0.0f ? high : 0.0f;
  } else if (low == 0.0f) {
    while (__half2float(*first) != 0.0f) first += stride;
    low = __half2float(*first);
    if (high == 0.0f) high = low;
  }
  const isa_cuda::ScaleAndMinimum p = Values::parameters(low, high);
  parameters[group] = p.scale;
  if (Values::has_minimum) parameters[groups + group] = p.minimum;
  const float scale = half_float(p.scale);
  memory.scale[group] = scale;
  memory.reciprocal[group] = scale != 0.0f ? __frcp_rn(scale) : 0.0f;
  memory.minimum[group] = Values::has_minimum ? half_float(p.minimum) : 0.0f;
}

// Each warp takes some rows, four channels a thread; then each thread a group.
template <class Values>
__device__ void channel_parameters(const Rows& x, int d, const Memory& memory,
                                   uint16_t* parameters) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int c = 4 * (static_cast<int>(threadIdx.x) % 32); c < d; c += 128) {
    const uint2 first = x.four(warp * warp_rows, c);
    Range even(first.x), odd(first.y);
#pragma unroll
    for (int i = 1; i < warp_rows; ++i) {
      const uint2 four = x.four(warp * warp_rows + i, c);
      even.add(four.x);
      odd.add(four.y);
    }
    memory.ranges[(warp * d + c) / 4] = {even.low, even.high, odd.low, odd.high};
  }
  __syncthreads();
  constexpr int group_warps = Values::group / warp_rows;
  const int groups = group_count<Values>(d);
  const auto* halves = reinterpret_cast<const __half*>(memory.ranges);
  for (int group = threadIdx.x; group < groups; group += threads) {
    const int c = group % d;
    const int first_warp = group / d * group_warps;
    const __half* range = halves + 2 * first_warp * d + c / 2 * 4 + c % 2;
    __half low = range[0];
    __half high = range[2];
#pragma unroll
    for (int w = 1; w < group_warps; ++w) {
      low = __hmin(low, range[2 * w * d]);
      high = __hmax(high, range[2 * w * d + 2]);
    }
    set_parameters<Values>(group, groups, __half2float(low), __half2float(high),
                           x.at(first_warp * warp_rows, c), x.stride, memory, parameters);
  }
}

// Groups of a token's channels: one thread each, or four where all of them make one group.
template <class Values>
__device__ void token_parameters(const Rows& x, int d, const Memory& memory, uint16_t* parameters) {
  constexpr int lanes = Values::group > 32 ? 4 : 1;
  static_assert(lanes == 1 || threads == lanes * block_tokens);
  const int groups = group_count<Values>(d);
  for (int i = threadIdx.x; i < lanes * groups; i += threads) {
    const int group = i / lanes;
    const int token = group % block_tokens;
    const int begin = lanes > 1 ? d / lanes * (i % lanes) : group / block_tokens * Values::group;
    const int size = lanes > 1 ? d / lanes : min(Values::group, d - begin);
    const uint2 first = x.four(token, begin);
    Range range(first.x);
    range.add(first.y);
#pragma unroll 8
    for (int c = 4; c < size; c += 4) {
      const uint2 four = x.four(token, begin + c);
      range.add(four.x);
      range.add(four.y);
    }
#pragma unroll
    for (int other = 1; other < lanes; other *= 2) {
      range.add(__shfl_xor_sync(~0u, range.low, other), __shfl_xor_sync(~0u, range.high, other));
    }
    if (i % lanes != 0) continue;
    set_parameters<Values>(group, groups, range.least(), range.most(), x.at(token, begin), 1,
                           memory, parameters);
  }
}

// a / b as division rounds it, for b of 11 bits and a reciprocal at most an ulp off: the remainder
// is exact then, and no quotient of such a and b is as near the middle of two floats as the error.
__device__ float quotient(float a, float b, float reciprocal) {
  const float near = __fmul_rn(a, reciprocal);
  return __fmaf_rn(__fmaf_rn(-b, near, a), reciprocal, near);
}

// The codes of `width` values as bytes. With a scale of 0, whose reciprocal is 0, those of 0.
template <class Values, int width>
__device__ uint32_t codes_of(const float (&x)[width], const float (&scale)[width],
                             const float (&reciprocal)[width], const float (&minimum)[width]) {
  uint32_t code[width];
#pragma unroll
  for (int e = 0; e < width; ++e) {
    const float above = Values::has_minimum ? __fsub_rn(x[e], minimum[e]) : x[e];
    const float y = quotient(above, scale[e], reciprocal[e]);
    if constexpr (Values::kind == isa_cuda::CodeKind::e4m3) {
      code[e] = __float_as_uint(reciprocal[e] != 0.0f ? copysignf(y, above) : 0.0f);
    } else {
      // Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the lowest bits.
      const float cut = fminf(fmaxf(y, Values::least_code), Values::most_code);
      code[e] = __float_as_uint(__fadd_rn(cut, 12582912.0f + Values::zero));
    }
  }
  constexpr bool is_float = Values::kind == isa_cuda::CodeKind::e4m3;
  const auto both = [&code](int e) {
    return is_float ? e4m3_of(__uint_as_float(code[e]), __uint_as_float(code[e + 1]))
                    : bytes_of<0x0040>(code[e], code[e + 1]);
  };
  if constexpr (width == 2) return both(0);
  return bytes_of<0x5410>(both(0), both(width - 2));
}

// Figures of `width` channels from shared memory: as many, or one for all.
template <int width>
__device__ void load_floats(const float* from, bool one_for_all, float (&to)[width]) {
  if (one_for_all) {
#pragma unroll
    for (float& x : to) x = *from;
  } else if constexpr (width == 4) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    to[0] = x.x;
    to[1] = x.y;
    to[2] = x.z;
    to[3] = x.w;
  } else {
    const float2 x = *reinterpret_cast<const float2*>(from);
    to[0] = x.x;
    to[1] = x.y;
  }
}

// The codes of channels c to c + width - 1 of a row.
template <class Values, int width>
__device__ uint32_t row_codes(const Rows& x, int d, const Memory& memory, int row, int c) {
  const int group = group_of<Values>(d, row, c);
  constexpr bool by_token = Values::axis == ScaleAxis::token;
  float scale[width], reciprocal[width], minimum[width] = {};
  load_floats(memory.scale + group, by_token, scale);
  load_floats(memory.reciprocal + group, by_token, reciprocal);
  if (Values::has_minimum) load_floats(memory.minimum + group, by_token, minimum);
  uint32_t pairs[width / 2];
  load_words(reinterpret_cast<const uint8_t*>(x.at(row, c)), pairs);
  float values[width];
#pragma unroll
  for (int e = 0; e < width; e += 2) {
    const float2 two = floats_of(pairs[e / 2]);
    values[e] = two.x;
    values[e + 1] = two.y;
  }
  return codes_of<Values, width>(values, scale, reciprocal, minimum);
}

template <int width>
__device__ void store_bytes(uint8_t* to, uint32_t bytes) {
  if constexpr (width == 4) {
    *reinterpret_cast<uint32_t*>(to) = bytes;
  } else {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bytes);
  }
}

// Bits [shift, shift + plane_bits) of codes as a plane's words. codes: of channels `part` apart, as
// bytes; those of one byte of the plane are as many words apart as they make.
template <int plane_bits, int width, int parts>
__device__ void store_plane(const uint32_t (&codes)[parts], int part, int shift, uint8_t* to) {
  constexpr uint32_t mask = ((1u << plane_bits) - 1) * 0x01010101u;
  constexpr int words = parts * plane_bits / 8;
#pragma unroll
  for (int k = 0; k < words; ++k) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 8 / plane_bits; ++j) {
      word |= (codes[k + j * words] >> shift & mask) << (plane_bits * j);
    }
    store_bytes<width>(to + k * part, word);
  }
}

template <class Values, int width>
__device__ void encode_rows(const Rows& x, int d, const Memory& memory, uint8_t* codes) {
  constexpr int bits = Values::code_bits;
  constexpr int smallest = bits == 8 ? 8 : bits % 2 != 0 ? 1 : bits % 4 != 0 ? 2 : 4;
  constexpr int parts = 8 / smallest;
  const int part = d / parts;
  const Share share(part / width);
  const int c = width * share.piece;
  for (int row = share.first; row < block_tokens; row += share.step) {
    uint32_t bytes[parts];
#pragma unroll
    for (int j = 0; j < parts; ++j) {
      bytes[j] = row_codes<Values, width>(x, d, memory, row, c + j * part);
    }
    uint8_t* to = codes + row * (d * bits / 8) + c;
    if constexpr (bits == 8) {
      store_bytes<width>(to, bytes[0]);
    } else {
      if constexpr ((bits & 4) != 0) store_plane<4, width>(bytes, part, bits - 4, to);
      constexpr int behind_4 = (bits & 4) != 0 ? 4 : 0;
      if constexpr ((bits & 2) != 0) {
        store_plane<2, width>(bytes, part, bits - behind_4 - 2, to + d * behind_4 / 8);
      }
      if constexpr ((bits & 1) != 0) {
        store_plane<1, width>(bytes, part, 0, to + d * (bits - 1) / 8);
      }
    }
  }
}

// Values of 16 bits, which need no parameters; f16 as it is.
template <class Values>
__device__ void encode_floats(const Rows& x, int d, uint8_t* codes) {
  const Share share(d / 4);
  for (int row = share.first; row < block_tokens; row += share.step) {
    const int c = 4 * share.piece;
    uint2 four = x.four(row, c);
    if constexpr (Values::kind != isa_cuda::CodeKind::halves) {
      for (uint32_t* pair : {&four.x, &four.y}) {
        const float2 two = floats_of(*pair);
        *pair = Values::code(two.x, 0.0f, 0.0f) | Values::code(two.y, 0.0f, 0.0f) << 16;
      }
    }
    *reinterpret_cast<uint2*>(codes + 2 * (row * d + c)) = four;
  }
}

template <class Format, int width>
__device__ void encode(const Rows& x, int d, const Memory& memory, uint8_t* codes) {
  using Values = typename Format::Values;
  if constexpr (Values::axis == ScaleAxis::none) {
    encode_floats<Values>(x, d, codes);
  } else {
    auto* parameters =
        reinterpret_cast<uint16_t*>(codes + block_tokens * d * Values::code_bits / 8);
    if constexpr (Values::axis == ScaleAxis::channel) {
      channel_parameters<Values>(x, d, memory, parameters);
    } else {
      token_parameters<Values>(x, d, memory, parameters);
    }
    __syncthreads();
    encode_rows<Values, width>(x, d, memory, codes);
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

// head_dim: 0, or the layer's where it is known when this is compiled. width: channels that a
// thread takes next to each other; all planes' parts must have a multiple of it.
template <int head_dim, int width>
__global__ void __launch_bounds__(threads, 4) seal(SealJob job) {
  let_next_kernel_start();
  const int place = job.plan.filled[blockIdx.x];
  if (place < 0) return;
  const BlockAddress block = job.plan.table[place];
  const SealSide side = job.sides[blockIdx.z];
  const int d = head_dim > 0 ? head_dim : job.head_dim;
  extern __shared__ __align__(16) uint8_t shared[];
  const Memory memory = memory_of(shared, d);
  const uint8_t* from = block.slot + side.slot + blockIdx.y * job.slot_stride;
  const Rows x = load_rows(reinterpret_cast<const __half*>(from), d, memory.rows);
  __syncthreads();
  uint8_t* codes = const_cast<uint8_t*>(block.page) + side.page + blockIdx.y * job.page_stride;
  enum Index {
#define KVART_FORMAT(name) index_##name,
#include "kvart_formats.inc"
#undef KVART_FORMAT
  };
  switch (side.format) {
#define KVART_FORMAT(name) \
  case index_##name:       \
    return encode<isa_cuda::name, width>(x, d, memory, codes);
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
    seal<128, 4><<<grid, threads, bytes, stream>>>(job);
  } else if (place.head_dim % 32 == 0) {
    seal<0, 4><<<grid, threads, bytes, stream>>>(job);
  } else {
    seal<0, 2><<<grid, threads, bytes, stream>>>(job);
  }
  return cudaGetLastError();
}

cudaError_t launch_decode(int format, int head_dim, const uint8_t* codes,
                          const uint16_t* parameters, float* out, cudaStream_t stream) {
  decode_side<<<1, 256, 0, stream>>>(format, head_dim, codes, parameters, out);
  return cudaGetLastError();
}

}  // namespace kvart::cuda
