// Decode attention with a kernel for a pair of formats: codes go from memory to registers and into
// matrix products as they are, scales are applied to what is smaller than they are.
//
// The units of all rows and KV heads (RowUnits) lie in one line, and each block of threads takes as
// many of it as the others. Each of its warps has a ring of stages in shared memory of its own,
// filled by bulk copies: a warp waits for nobody while units of one row and KV head last. Then the
// four warps merge; where a row is split, the last block of threads to come merges the parts.
#pragma once

#include "attention/cuda/elements.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/tiles.cuh"

namespace kvart::cuda {

constexpr int decode_warps = 4;
constexpr int decode_threads = 32 * decode_warps;
constexpr int heads_max = 8;  // query heads of a KV head
// Probabilities are multiplied by 2^8, so that small ones keep their bits as f16.
constexpr float probability_shift = 8.0f;
constexpr float log2_e = 1.44269504f;

// Sizes of one side.
template <class Values, int d>
struct SideShape {
  static constexpr int row_bytes = d * Values::code_bits / 8;
  static constexpr int groups = Values::axis == ScaleAxis::none      ? 0
                                : Values::axis == ScaleAxis::channel ? 64 / Values::group * d
                                                                     : 64;
  static constexpr int parameter_bytes = 2 * groups * (Values::has_minimum ? 2 : 1);
  static constexpr int bytes = 64 * row_bytes + parameter_bytes;
  static_assert(Values::axis != ScaleAxis::channel || Values::group == 64);
  static_assert(Values::axis != ScaleAxis::token || (Values::group >= d && !Values::has_minimum));
};

template <class K, class V, int d>
struct UnitShape {
  using KSide = SideShape<K, d>;
  using VSide = SideShape<V, d>;
  static constexpr int open_side_bytes = open_tokens * d * 2;
  static constexpr int code_bytes = KSide::row_bytes + VSide::row_bytes;  // of a token
  // Codes of two planes take more registers than there are for 64 tokens.
  static constexpr bool both_of_two_planes = K::code_bits % 4 != 0 && V::code_bits % 4 != 0;
  // Units of about equal size.
  static constexpr int tokens = 64 * code_bytes <= 2 * open_side_bytes && !both_of_two_planes ? 64
                                : 32 * code_bytes <= 2 * open_side_bytes                      ? 32
                                                                                              : 16;
  static constexpr int per_block = 64 / tokens;
  static constexpr int tiles = tokens / 16;
  static constexpr int k_parameters = tokens * KSide::row_bytes;  // in a stage
  static constexpr int v_codes = k_parameters + KSide::parameter_bytes;
  static constexpr int v_parameters = v_codes + tokens * VSide::row_bytes;
  static constexpr int bytes = v_parameters + VSide::parameter_bytes;
  static constexpr int stage_bytes =
      ((bytes > 2 * open_side_bytes ? bytes : 2 * open_side_bytes) + 127) / 128 * 128;
  static constexpr int stages = d <= 64 ? 4 : 2;
  static constexpr int ring_bytes = stages * stage_bytes;
  static constexpr int shared_bytes = decode_warps * ring_bytes;
  static_assert(ring_bytes >= 4 * (heads_max * d + 2 * heads_max));  // a warp's result
};

struct DecodeJob {
  AttendJob attend;
  const int* units;  // of the rows before each row
  float* partial;    // [blocks of threads][2][heads_max * (d + 2)]
  int* arrived;      // [blocks of threads]
};

// Part of the units of one row and KV head.
struct Segment {
  int row;
  int kv_head;
  int first;  // unit
  int count;
  int begin;  // of all units of this row and KV head, in the line
  int end;
};

// The row whose units that place in the line is among. All threads of a warp look together.
__device__ inline int row_at(const int* units, int rows, int heads, int at) {
  int low = 0;
  int high = rows;
  while (high - low > 1) {
    const int step = (high - low + 31) / 32;
    const int probe = low + static_cast<int>(threadIdx.x) % 32 * step;
    const bool before = probe < high && units[probe] * heads <= at;
    low += (__popc(__ballot_sync(~0u, before)) - 1) * step;
    high = min(high, low + step);
  }
  return low;
}

__device__ inline Segment segment_at(const DecodeJob& job, int at, int end) {
  const int heads = job.attend.place.kv_heads;
  const int row = row_at(job.units, job.attend.rows, heads, at);
  const int before = job.units[row];
  const int units = job.units[row + 1] - before;
  const int kv_head = (at - before * heads) / units;
  const int begin = before * heads + kv_head * units;
  const int stop = min(end, begin + units);
  return {row, kv_head, at - begin, stop - at, begin, begin + units};
}

// A warp's place in its ring.
template <class Shape>
struct Ring {
  uint8_t* memory;
  uint64_t* barriers;
  uint64_t policy;
  uint32_t issued = 0;
  uint32_t read = 0;

  __device__ uint8_t* stage(uint32_t i) const {
    return memory + i % Shape::stages * Shape::stage_bytes;
  }
  __device__ void wait() const {
    barrier_wait(&barriers[read % Shape::stages], read / Shape::stages & 1);
  }
};

// What a warp has of one row and KV head. Thread 4 g + t: channels of g, heads 2 t and 2 t + 1.
template <int d>
struct State {
  float o[d / 16][4];
  float maximum[2];
  float sum[2];  // of this thread's tokens

  __device__ void clear() {
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& x : tile) x = 0.0f;
    }
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }
};

// Over the threads with the same t.
__device__ inline float maximum_over_g(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  return x;
}
__device__ inline float sum_over_g(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

template <class Order, int d>
__device__ inline void load_queries(const AttendJob& job, const Segment& segment,
                                    uint32_t (&q)[d / 16][2]) {
  const int g = threadIdx.x % 32 / 4;
  const int group = job.params.q_heads / job.place.kv_heads;
  const size_t head = static_cast<size_t>(segment.row) * job.params.q_heads +
                      segment.kv_head * group + (g < group ? g : 0);
#pragma unroll
  for (int s = 0; s < d / 16; ++s) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const size_t at = head * d + Order::base(s, threadIdx.x % 4) + i;
      x[i] = g < group ? load_element(job.type, job.q, at) : 0.0f;
    }
    q[s][0] = halves_of(x[0], x[Order::interleaved ? 2 : 1]);
    q[s][1] = halves_of(x[Order::interleaved ? 1 : 2], x[3]);
  }
}

// Scores of 16 tokens at a time, before the softmax's scale: element 0 of tile i is token
// 16 i + g of head 2 t, 1 of head 2 t + 1, 2 and 3 of token 16 i + g + 8.
template <class K, int d, int tiles>
__device__ inline void sealed_scores(const uint8_t* codes, const uint8_t* parameters, int token,
                                     const uint32_t (&q)[d / 16][2], float (&out)[tiles][4]) {
  using Order = CodesOf<K, d>;
  constexpr bool by_channel = K::axis == ScaleAxis::channel;
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  uint32_t scaled[d / 16][2];
  float offset[4] = {};
#pragma unroll
  for (int s = 0; s < d / 16; ++s) {
    scaled[s][0] = q[s][0];
    scaled[s][1] = q[s][1];
    if constexpr (by_channel) {
      uint32_t first, second;
      load_four<Order>(parameters + 2 * Order::base(s, t), first, second);
      scaled[s][0] = product(q[s][0], first);
      scaled[s][1] = product(q[s][1], second);
      if constexpr (K::has_minimum) {
        load_four<Order>(parameters + 2 * d + 2 * Order::base(s, t), first, second);
        multiply(offset, first, first, second, second, q[s][0], q[s][1]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
    uint32_t upper[Order::words], lower[Order::words];
    Order::load_row(codes + (16 * i + g) * SideShape<K, d>::row_bytes, t, upper);
    Order::load_row(codes + (16 * i + g + 8) * SideShape<K, d>::row_bytes, t, lower);
    float sum[Order::planes][4] = {};
#pragma unroll
    for (int s = 0; s < d / 16; ++s) {
      multiply(sum[s % Order::planes], Order::first(upper, s), Order::first(lower, s),
               Order::second(upper, s), Order::second(lower, s), scaled[s][0], scaled[s][1]);
    }
    float scale[2] = {1.0f, 1.0f};
    if constexpr (K::axis == ScaleAxis::token) {
      const auto* scales = reinterpret_cast<const __half*>(parameters) + token + 16 * i;
      scale[0] = __half2float(scales[g]);
      scale[1] = __half2float(scales[g + 8]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float x = sum[0][e] * Order::plane_factor(0);
      if constexpr (Order::planes == 2) x = fmaf(sum[1][e], Order::plane_factor(1), x);
      out[i][e] = fmaf(x, scale[e / 2], offset[e]);
    }
  }
}

template <class Order, int d>
__device__ inline void open_scores(const uint8_t* rows, const uint32_t (&q)[d / 16][2],
                                   float (&out)[1][4]) {
  const uint8_t* row = rows + threadIdx.x % 32 / 4 * 2 * d;
#pragma unroll
  for (float& x : out[0]) x = 0.0f;
#pragma unroll
  for (int s = 0; s < d / 16; ++s) {
    const int at = 2 * Order::base(s, threadIdx.x % 4);
    uint32_t a0, a1, a2, a3;
    load_four<Order>(row + at, a0, a2);
    load_four<Order>(row + 16 * d + at, a1, a3);
    multiply(out[0], a0, a1, a2, a3, q[s][0], q[s][1]);
  }
}

// Scores become probabilities relative to the new maximum, times 2^8; factor: what the output so
// far is multiplied by. first, end: the tokens of these that the row sees.
template <int tiles, int d>
__device__ inline void softmax(const AttentionParams& params, int first, int end,
                               float (&s)[tiles][4], State<d>& state, float (&factor)[2]) {
  const int g = threadIdx.x % 32 / 4;
  const bool all = first <= 0 && end >= 16 * tiles;
  float maximum[2] = {state.maximum[0], state.maximum[1]};
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float x = s[i][e] * params.scale;
      if (params.soft_cap != 0.0f) x = params.soft_cap * tanhf(x / params.soft_cap);
      const int token = 16 * i + g + 8 * (e / 2);
      s[i][e] = all || (token >= first && token < end) ? x * log2_e : -INFINITY;
      maximum[e % 2] = fmaxf(maximum[e % 2], s[i][e]);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    maximum[h] = maximum_over_g(maximum[h]);
    const float finite = maximum[h] == -INFINITY ? 0.0f : maximum[h];
    factor[h] = exp2_approximate(state.maximum[h] - finite);
    state.maximum[h] = maximum[h];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
      for (int e = h; e < 4; e += 2) {
        s[i][e] = exp2_approximate(s[i][e] - finite + probability_shift);
        sum += s[i][e];
      }
    }
    state.sum[h] = fmaf(state.sum[h], factor[h], sum);
  }
}

// Probabilities of a tile as the right operand of a product over its tokens.
__device__ inline void probabilities(const float (&p)[4], uint32_t (&b)[2]) {
  b[0] = transposed(halves_of(p[0], p[1]));
  b[1] = transposed(halves_of(p[2], p[3]));
}

// Scales of tokens go into the probabilities, relative to the largest of them, which is returned.
template <int tiles>
__device__ inline float take_scales(const __half* scales, float (&p)[tiles][4]) {
  const int g = threadIdx.x % 32 / 4;
  unsigned largest = 0;  // scales are not negative: their bits have their order
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
    largest = max(largest, static_cast<unsigned>(__half_as_ushort(scales[16 * i + g])));
    largest = max(largest, static_cast<unsigned>(__half_as_ushort(scales[16 * i + g + 8])));
  }
  largest = __reduce_max_sync(~0u, largest);
  const float reference = __half2float(__ushort_as_half(static_cast<unsigned short>(largest)));
  const float inverse = reference > 0.0f ? __frcp_rn(reference) : 0.0f;
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      p[i][e] *= __half2float(scales[16 * i + g + 8 * (e / 2)]) * inverse;
    }
  }
  return reference;
}

template <class V, int d, int tiles>
__device__ inline void sealed_output(const uint8_t* codes, const uint8_t* parameters, int token,
                                     float (&p)[tiles][4], const float (&factor)[2],
                                     State<d>& state) {
  using Order = CodesOf<V, d>;
  constexpr int row_bytes = SideShape<V, d>::row_bytes;
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  const auto* scales = reinterpret_cast<const __half*>(parameters);
  float reference = 1.0f;
  if constexpr (V::axis == ScaleAxis::token) reference = take_scales<tiles>(scales + token, p);
  float sum[d / 16][4] = {};
  float ones[4] = {};  // sums of the probabilities
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
    uint32_t b[2];
    probabilities(p[i], b);
    uint32_t x[4][Order::channel_words];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = 16 * i + 2 * t + k % 2 + 8 * (k / 2);
      Order::load_channels(codes + row * row_bytes, g, x[k]);
    }
    if constexpr (V::has_minimum) {
      constexpr uint32_t one = 0x3c003c00;
      multiply(ones, one, one, one, one, b[0], b[1]);
    }
#pragma unroll
    for (int j = 0; j < d / 16; ++j) {
      uint32_t a0, a1, a2, a3;
      Order::pair(x[0], x[1], j, a0, a1);
      Order::pair(x[2], x[3], j, a2, a3);
      multiply(sum[j], a0, a1, a2, a3, b[0], b[1]);
    }
  }
#pragma unroll
  for (int j = 0; j < d / 16; ++j) {
    const float plane = Order::plane_factor(j % Order::planes);
    float2 scale = {reference * plane, reference * plane};
    float2 minimum = {0.0f, 0.0f};
    if constexpr (V::axis == ScaleAxis::channel) {
      const __half* at = scales + Order::channel(j, g);
      scale = __half22float2(*reinterpret_cast<const __half2*>(at));
      scale.x *= plane;
      scale.y *= plane;
      if constexpr (V::has_minimum) {
        minimum = __half22float2(*reinterpret_cast<const __half2*>(at + d));
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float o = state.o[j][e] * factor[e % 2];
      o = fmaf(sum[j][e], e < 2 ? scale.x : scale.y, o);
      if constexpr (V::has_minimum) o = fmaf(ones[e], e < 2 ? minimum.x : minimum.y, o);
      state.o[j][e] = o;
    }
  }
}

// Rows behind `end` are not written yet, and may be anything.
template <class Order, int d>
__device__ inline void open_output(const uint8_t* rows, int end, const float (&p)[1][4],
                                   const float (&factor)[2], State<d>& state) {
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  uint32_t b[2];
  probabilities(p[0], b);
#pragma unroll
  for (int j = 0; j < d / 16; ++j) {
    uint32_t x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = 2 * t + k % 2 + 8 * (k / 2);
      x[k] = *reinterpret_cast<const uint32_t*>(rows + 2 * (row * d + Order::channel(j, g)));
      if (row >= end) x[k] = 0;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) state.o[j][e] *= factor[e % 2];
    multiply(state.o[j], bytes_of<0x5410>(x[0], x[1]), bytes_of<0x7632>(x[0], x[1]),
             bytes_of<0x5410>(x[2], x[3]), bytes_of<0x7632>(x[2], x[3]), b[0], b[1]);
  }
}

}  // namespace kvart::cuda
