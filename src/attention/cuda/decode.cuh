// Decode attention with a kernel for a pair of formats: codes go from memory to registers and into
// matrix products as they are, scales are applied to what is smaller than they are.
//
// Each warp of a block of threads has a ring of stages in shared memory of its own, filled by bulk
// copies of its units (units.cuh): a warp waits for nobody while units of one row and KV head last.
// Then the four warps merge; where a row is split, the last block of threads to come merges the
// parts.
#pragma once

#include "attention/cuda/elements.cuh"
#include "attention/cuda/tiles.cuh"
#include "attention/cuda/units.cuh"

namespace kvart::cuda {

// Probabilities are multiplied by 2^8, so that small ones keep their bits as f16.
constexpr float probability_shift = 8.0f;
constexpr float log2_e = 1.44269504f;

// What a warp has of one row and KV head. Thread 4 g + t: channels of g, heads 2 t and 2 t + 1.
template <int d>
struct State {
  float o[d / 16][4];
  float maximum[2];
  float sum[2];  // of all threads with this t together

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

// The order of queries within a step: that of the codes, or of the channels where each block's
// scales go into them first.
template <class K, int d>
constexpr bool interleaved_queries = CodesOf<K, d>::interleaved&& K::axis != ScaleAxis::channel;

// Four neighbouring f16 as two operands.
template <bool interleaved>
__device__ inline uint2 operands_of(uint2 x) {
  if constexpr (!interleaved) return x;
  return {bytes_of<0x5410>(x.x, x.y), bytes_of<0x7632>(x.x, x.y)};
}

// Queries in f16 or bf16.
template <class K, int d>
__device__ inline void load_queries(const AttendJob& job, const Segment& segment,
                                    uint32_t (&q)[d / 16][2]) {
  const int g = threadIdx.x % 32 / 4;
  const bool used = g < segment.heads;
  const size_t head =
      static_cast<size_t>(segment.row) * job.params.q_heads + segment.first_head + (used ? g : 0);
  const auto* row = reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(job.q) + head * d);
  uint2 x[d / 16];
#pragma unroll
  for (int s = 0; s < d / 16; ++s) x[s] = row[CodesOf<K, d>::base(s, threadIdx.x % 4) / 4];
  if (job.type == Element::bf16) {
#pragma unroll
    for (uint2& two : x) two = {halves_of_bfloats(two.x), halves_of_bfloats(two.y)};
  }
#pragma unroll
  for (int s = 0; s < d / 16; ++s) {
    const uint2 two = operands_of<interleaved_queries<K, d>>(x[s]);
    q[s][0] = used ? two.x : 0u;
    q[s][1] = used ? two.y : 0u;
  }
}

// The sums that a score is made of: one for each plane or group of channels with a scale.
template <class K, int d>
struct ScoreSums {
  using Order = CodesOf<K, d>;
  static constexpr int groups = SideShape<K, d>::scale_groups;
  static constexpr int count = groups > 1 ? groups : Order::planes;
  static_assert(groups == 1 || groups >= Order::planes);

  __device__ static int of_step(int s) {
    return groups > 1 ? Order::base(s, 0) / K::group : s % Order::planes;
  }
  static constexpr float factor(int sum) {
    return Order::plane_factor(groups > 1 ? sum * Order::planes / groups : sum);
  }
};

// What is taken from each code before it meets its query, so that what rounding the query costs
// grows with less: the code of value 0, or the middle of the codes, whose products with the
// channels' scales are then added again as they are. Fewer than 4 bits, and 8, would gain as much
// from it; with fewer than 4, registers don't suffice.
template <class K>
constexpr int middle_code() {
  const bool has_middle = K::axis == ScaleAxis::channel && K::code_bits >= 4 && K::code_bits < 8;
  return has_middle ? 1 << (K::code_bits - 1) : zero_code<K>();
}

// What that takes from each sum, of heads 2 t and 2 t + 1: the same of all tokens. q: as the codes
// meet them.
template <class K, int d>
__device__ inline void subtract_middle(const uint32_t (&q)[d / 16][2],
                                       float (&begin)[ScoreSums<K, d>::count][2]) {
  using Order = CodesOf<K, d>;
  using Sums = ScoreSums<K, d>;
#pragma unroll
  for (int n = 0; n < Sums::count; ++n) {
    float sum[4] = {};
    if constexpr (middle_code<K>() != 0) {
#pragma unroll
      for (int s = 0; s < d / 16; ++s) {
        if (Sums::of_step(s) != n) continue;
        const uint32_t middle = 0x80008000u | Order::in_part(middle_code<K>(), s % Order::planes);
        multiply(sum, middle, middle, middle, middle, q[s][0], q[s][1]);
      }
    }
    begin[n][0] = sum[0];
    begin[n][1] = sum[1];
  }
}

// A figure of every channel, four neighbouring ones for each step, in the channels' order.
template <class Order, int d>
__device__ inline void load_steps(const uint8_t* from, uint2 (&to)[d / 16]) {
  constexpr int planes = Order::planes;
  const int t = threadIdx.x % 4;
  if constexpr (d / 16 % (2 * planes) == 0) {  // two steps of a plane lie next to each other
#pragma unroll
    for (int i = 0; i < d / 32; ++i) {
      const int s = i / planes * 2 * planes + i % planes;
      const uint4 x = *reinterpret_cast<const uint4*>(from + 2 * Order::base(s, t));
      to[s] = {x.x, x.y};
      to[s + planes] = {x.z, x.w};
    }
  } else {
#pragma unroll
    for (int s = 0; s < d / 16; ++s) {
      to[s] = *reinterpret_cast<const uint2*>(from + 2 * Order::base(s, t));
    }
  }
}

// The queries times the scales of a group of tokens, where those are of channels, and what is added
// to all scores of a head.
template <class K, int d>
struct ScaledQueries {
  using Order = CodesOf<K, d>;
  uint32_t q[d / 16][2];
  float begin[ScoreSums<K, d>::count][2];  // of the sums
  float offset[2];                         // of heads 2 t and 2 t + 1

  // parameters: all of the block.
  __device__ void set(const uint8_t* parameters, int group, const uint32_t (&queries)[d / 16][2],
                      float unit) {
    offset[0] = offset[1] = 0.0f;
    if constexpr (K::axis == ScaleAxis::channel) {
      const uint8_t* scales = parameters + 2 * d * group;
      constexpr float middle = middle_code<K>();
      uint2 x[d / 16];
      load_steps<Order, d>(scales, x);
      float sum[4] = {};
#pragma unroll
      for (int s = 0; s < d / 16; ++s) {
        if constexpr (middle_code<K>() != 0) {
          multiply(sum, x[s].x, x[s].x, x[s].y, x[s].y, queries[s][0], queries[s][1]);
        }
        const uint2 two = operands_of<Order::interleaved>(
            {product(queries[s][0], x[s].x), product(queries[s][1], x[s].y)});
        q[s][0] = two.x;
        q[s][1] = two.y;
      }
#pragma unroll
      for (float& y : sum) y *= middle;
      if constexpr (K::has_minimum) {
        load_steps<Order, d>(scales + 2 * SideShape<K, d>::groups, x);
#pragma unroll
        for (int s = 0; s < d / 16; ++s) {
          multiply(sum, x[s].x, x[s].x, x[s].y, x[s].y, queries[s][0], queries[s][1]);
        }
      }
      offset[0] = sum[0] * unit;
      offset[1] = sum[1] * unit;
    } else {
#pragma unroll
      for (int s = 0; s < d / 16; ++s) {
        q[s][0] = queries[s][0];
        q[s][1] = queries[s][1];
      }
    }
    subtract_middle<K, d>(q, begin);
  }
};

// Scores of 16 tokens, times `unit`: elements 0 and 1 are of token g and heads 2 t and 2 t + 1, 2
// and 3 of token g + 8. codes: their rows; token: the first one's place in its block, whose
// parameters those are.
template <class K, int d>
__device__ inline void tile_scores(const uint8_t* codes, const uint8_t* parameters, int token,
                                   const ScaledQueries<K, d>& scaled, float unit, float (&out)[4]) {
  using Order = CodesOf<K, d>;
  using Sums = ScoreSums<K, d>;
  constexpr int row_bytes = SideShape<K, d>::row_bytes;
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  __syncwarp();  // loads for one tile at a time: they take registers
  uint32_t upper[Order::words], lower[Order::words];
  Order::load_row(codes + g * row_bytes, t, upper);
  Order::load_row(codes + (g + 8) * row_bytes, t, lower);
#pragma unroll
  for (int e = 0; e < 4; ++e) out[e] = scaled.offset[e % 2];
#pragma unroll
  for (int n = 0; n < Sums::count; ++n) {
    float sum[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = scaled.begin[n][e % 2];
#pragma unroll
    for (int s = 0; s < d / 16; ++s) {
      if (Sums::of_step(s) != n) continue;
      multiply(sum, Order::first(upper, s), Order::first(lower, s), Order::second(upper, s),
               Order::second(lower, s), scaled.q[s][0], scaled.q[s][1]);
    }
    float scale[2] = {unit, unit};
    if constexpr (K::axis == ScaleAxis::token) {
      const auto* scales =
          reinterpret_cast<const __half*>(parameters) + (Sums::groups > 1 ? 64 * n : 0) + token;
      scale[0] *= __half2float(scales[g]);
      scale[1] *= __half2float(scales[g + 8]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      out[e] = fmaf(sum[e], Sums::factor(n) * scale[e / 2], out[e]);
    }
  }
}

// Scores of a unit's tokens, 16 in each tile. token: the first one's place in its block.
template <class K, int d, int tiles>
__device__ inline void sealed_scores(const uint8_t* codes, const uint8_t* parameters, int token,
                                     const uint32_t (&q)[d / 16][2], float unit,
                                     float (&out)[tiles][4]) {
  constexpr int group_tokens = SideShape<K, d>::tokens_max;
  ScaledQueries<K, d> scaled;
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
    if (16 * i % group_tokens == 0) {
      scaled.set(parameters, (token + 16 * i) / group_tokens, q, unit);
    }
    tile_scores<K, d>(codes + 16 * i * SideShape<K, d>::row_bytes, parameters, token + 16 * i,
                      scaled, unit, out[i]);
  }
}

template <class K, int d>
__device__ inline void open_scores(const uint8_t* rows, const uint32_t (&q)[d / 16][2], float unit,
                                   float (&out)[1][4]) {
  const uint8_t* row = rows + threadIdx.x % 32 / 4 * 2 * d;
#pragma unroll
  for (float& x : out[0]) x = 0.0f;
#pragma unroll
  for (int s = 0; s < d / 16; ++s) {
    const int at = 2 * CodesOf<K, d>::base(s, threadIdx.x % 4);
    const auto four = [&](const uint8_t* from) {
      return operands_of<interleaved_queries<K, d>>(*reinterpret_cast<const uint2*>(from + at));
    };
    const uint2 upper = four(row);
    const uint2 lower = four(row + 16 * d);
    multiply(out[0], upper.x, lower.x, upper.y, lower.y, q[s][0], q[s][1]);
  }
#pragma unroll
  for (float& x : out[0]) x *= unit;
}

// What the output so far is multiplied by; `needed`: not 1 for some head of this warp.
struct Rescale {
  float factor[2];
  bool needed;
};

// Scores, in powers of 2 as soft_cap is (0: none), become probabilities relative to the new
// maximum, times 2^8, whose sum is added to the state's if `adds`. first, end: the tokens of these
// that the row sees.
template <bool adds, int tiles, int d>
__device__ inline Rescale softmax(float soft_cap, int first, int end, float (&s)[tiles][4],
                                  State<d>& state) {
  const int g = threadIdx.x % 32 / 4;
  if (soft_cap != 0.0f) {
#pragma unroll
    for (auto& tile : s) {
#pragma unroll
      for (float& x : tile) x = soft_cap * tanhf(x / soft_cap);
    }
  }
  if (first > 0 || end < 16 * tiles) {
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int token = 16 * i + g + 8 * (e / 2);
        if (token < first || token >= end) s[i][e] = -INFINITY;
      }
    }
  }
  Rescale rescale;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float maximum = state.maximum[h];
#pragma unroll
    for (int i = 0; i < tiles; ++i) maximum = fmaxf(maximum, fmaxf(s[i][h], s[i][h + 2]));
    maximum = maximum_over_g(maximum);
    const float finite = maximum == -INFINITY ? 0.0f : maximum;
    rescale.factor[h] = exp2_approximate(state.maximum[h] - finite);
    state.maximum[h] = maximum;
    const float base = finite - probability_shift;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
      for (int e = h; e < 4; e += 2) {
        s[i][e] = exp2_approximate(s[i][e] - base);
        if (adds) sum += s[i][e];
      }
    }
    state.sum[h] = fmaf(state.sum[h], rescale.factor[h], sum);
  }
  rescale.needed = __any_sync(~0u, rescale.factor[0] != 1.0f || rescale.factor[1] != 1.0f);
  return rescale;
}

template <int d>
__device__ inline void apply(const Rescale& rescale, State<d>& state) {
  if (!rescale.needed) return;
#pragma unroll
  for (auto& tile : state.o) {
#pragma unroll
    for (int e = 0; e < 4; ++e) tile[e] *= rescale.factor[e % 2];
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

// A power of 2 that brings the largest of f16 parameters near 1, in both halves of a word, and its
// inverse: so that products with probabilities stay within f16.
struct ParameterRange {
  uint32_t factor;
  float inverse;
};

template <int bytes>
__device__ inline ParameterRange range_of(const uint8_t* parameters) {
  unsigned largest = 0;
  for (int i = threadIdx.x % 32; i < bytes / 16; i += 32) {
    const uint4 x = reinterpret_cast<const uint4*>(parameters)[i];
    constexpr unsigned magnitude = 0x7fff7fff;
    largest = __vmaxu2(largest, __vmaxu2(x.x & magnitude, x.y & magnitude));
    largest = __vmaxu2(largest, __vmaxu2(x.z & magnitude, x.w & magnitude));
  }
  largest = __reduce_max_sync(~0u, max(largest & 0xffffu, largest >> 16));
  const unsigned exponent = max(largest >> 10, 1u);                         // biased by 15
  const unsigned factor = exponent < 30 ? (30 - exponent) << 10 : 0x0200u;  // 2^-15
  return {factor * 0x00010001u, __uint_as_float((exponent - 15 + 127) << 23)};
}

// The right operands of a tile's products: probabilities, times the scales of groups of channels
// where there are several; and sums of what the minima, or the codes' zero, add to the output, of
// each group.
template <class V, int d>
struct Weights {
  static constexpr int groups = SideShape<V, d>::scale_groups;
  static constexpr bool has_sums = V::has_minimum || zero_code<V>() != 0;
  // The first of the sums is that of the probabilities.
  static constexpr bool sums_probabilities = V::has_minimum && groups == 1;
  // What is added for each of a token's groups is a row of one product.
  static constexpr bool sums_in_rows = groups > 1;
  static_assert(groups == 1 || has_sums);
  uint32_t b[groups][2];
  float sums[sums_in_rows ? 1 : groups][4] = {};
  uint32_t factor;  // of the parameters

  // token: of the tile, in its block.
  __device__ void take(const float (&p)[4], const uint8_t* parameters, int token) {
    uint32_t plain[2];
    probabilities(p, plain);
    constexpr uint32_t one = 0x3c003c00;
    const int t = threadIdx.x % 4;
    const auto parameter = [&](int group, int offset) {
      const int at = 2 * (64 * group + token + 2 * t) + offset;
      return product(*reinterpret_cast<const uint32_t*>(parameters + at), factor);
    };
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      b[group][0] = plain[0];
      b[group][1] = plain[1];
      if constexpr (groups > 1) {
        b[group][0] = product(plain[0], parameter(group, 0));
        b[group][1] = product(plain[1], parameter(group, 16));
      } else if constexpr (V::has_minimum) {
        multiply(sums[group], one, one, one, one, plain[0], plain[1]);
      }
    }
    if constexpr (sums_in_rows) {
      const int g = threadIdx.x % 32 / 4;
      const auto added = [&](int offset) {
        if (g >= groups) return 0u;
        if constexpr (V::has_minimum) return parameter(groups + g, offset);
        return product(parameter(g, offset), halves_of(-zero_code<V>(), -zero_code<V>()));
      };
      const uint32_t first = added(0);
      const uint32_t second = added(16);
      multiply(sums[0], first, 0u, second, 0u, plain[0], plain[1]);
    }
  }

  // A group's sum, of head 2 t + h. All threads of a warp together.
  __device__ float sum(int group, int h) const {
    if constexpr (!sums_in_rows) return sums[group][h];
    return __shfl_sync(~0u, sums[0][h], 4 * group + static_cast<int>(threadIdx.x) % 4);
  }
};

// Adds a unit's sums to the output. reference: of all of them.
template <class V, int d>
__device__ inline void add_output(const float (&sum)[d / 16][4], const Weights<V, d>& weights,
                                  const uint8_t* parameters, float reference, State<d>& state) {
  using Order = CodesOf<V, d>;
  constexpr int planes = Order::planes;
  constexpr int plane_tiles = d / 16 / planes;  // of channels next to each other
  constexpr bool by_channel = V::axis == ScaleAxis::channel;
  constexpr int groups = Weights<V, d>::groups;
  const int g = threadIdx.x % 32 / 4;
  [[maybe_unused]] float sums[groups][2];
  if constexpr (Weights<V, d>::has_sums) {
#pragma unroll
    for (int i = 0; i < 2 * groups; ++i) sums[i / 2][i % 2] = weights.sum(i / 2, i % 2);
  }
#pragma unroll
  for (int plane = 0; plane < planes; ++plane) {
    const float factor = Order::plane_factor(plane);
    [[maybe_unused]] uint32_t scales[plane_tiles], minima[plane_tiles];
    if constexpr (by_channel) {
      const uint8_t* at = parameters + 2 * Order::channel(plane, g);
      load_words(at, scales);
      if constexpr (V::has_minimum) load_words(at + 2 * d, minima);
    }
#pragma unroll
    for (int i = 0; i < plane_tiles; ++i) {
      const int j = plane + planes * i;
      float2 scale = {reference * factor, reference * factor};
      float2 added = {reference, reference};
      if constexpr (by_channel) {
        scale = __half22float2(*reinterpret_cast<const __half2*>(&scales[i]));
        scale.x *= factor;
        scale.y *= factor;
        if constexpr (V::has_minimum)
          added = __half22float2(*reinterpret_cast<const __half2*>(&minima[i]));
      }
      const int group = groups > 1 ? Order::channel(j, 0) / V::group : 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float o = fmaf(sum[j][e], e < 2 ? scale.x : scale.y, state.o[j][e]);
        if constexpr (Weights<V, d>::has_sums) {
          o = fmaf(sums[group][e % 2], e < 2 ? added.x : added.y, o);
        }
        state.o[j][e] = o;
      }
    }
  }
}

// Adds the products of 16 tokens' values and probabilities. codes: their rows; token: the first
// one's place in its block, whose parameters those are.
template <class V, int d>
__device__ inline void add_tile(const uint8_t* codes, const uint8_t* parameters, int token,
                                const float (&p)[4], Weights<V, d>& weights,
                                float (&sum)[d / 16][4]) {
  using Order = CodesOf<V, d>;
  constexpr int groups = Weights<V, d>::groups;
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  __syncwarp();
  weights.take(p, parameters, token);
  uint32_t x[4][Order::channel_words];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int row = 2 * t + k % 2 + 8 * (k / 2);
    Order::load_channels(codes + row * SideShape<V, d>::row_bytes, g, x[k]);
  }
#pragma unroll
  for (int j = 0; j < d / 16; ++j) {
    uint32_t a0, a1, a2, a3;
    Order::pair(x[0], x[1], j, a0, a1);
    Order::pair(x[2], x[3], j, a2, a3);
    const int group = groups > 1 ? Order::channel(j, 0) / V::group : 0;
    multiply(sum[j], a0, a1, a2, a3, weights.b[group][0], weights.b[group][1]);
  }
}

// Adds what a unit's tokens came to, whose products those are.
template <class V, int d>
__device__ inline void add_sums(const float (&sum)[d / 16][4], const Weights<V, d>& weights,
                                const uint8_t* parameters, float reference, State<d>& state) {
  add_output<V, d>(sum, weights, parameters, reference, state);
  if constexpr (Weights<V, d>::sums_probabilities) {  // of which every thread has all
    if (threadIdx.x % 32 < 4) {
      state.sum[0] += weights.sums[0][0];
      state.sum[1] += weights.sums[0][1];
    }
  }
}

template <class V, int d, int tiles>
__device__ inline void sealed_output(const uint8_t* codes, const uint8_t* parameters, int token,
                                     float (&p)[tiles][4], const Rescale& rescale,
                                     State<d>& state) {
  apply(rescale, state);
  Weights<V, d> weights;
  float reference = 1.0f;
  if constexpr (Weights<V, d>::groups > 1) {
    const ParameterRange range = range_of<SideShape<V, d>::parameter_bytes>(parameters);
    weights.factor = range.factor;
    reference = range.inverse;
  } else if constexpr (V::axis == ScaleAxis::token) {
    reference = take_scales<tiles>(reinterpret_cast<const __half*>(parameters) + token, p);
  }
  float sum[d / 16][4] = {};
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
    add_tile<V, d>(codes + 16 * i * SideShape<V, d>::row_bytes, parameters, token + 16 * i, p[i],
                   weights, sum);
  }
  add_sums<V, d>(sum, weights, parameters, reference, state);
}

// Rows behind `end` are not written yet, and may be anything.
template <class Order, int d>
__device__ inline void open_output(const uint8_t* rows, int end, const float (&p)[1][4],
                                   const Rescale& rescale, State<d>& state) {
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  uint32_t b[2];
  probabilities(p[0], b);
  apply(rescale, state);
#pragma unroll
  for (int j = 0; j < d / 16; ++j) {
    uint32_t x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = 2 * t + k % 2 + 8 * (k / 2);
      x[k] = *reinterpret_cast<const uint32_t*>(rows + 2 * (row * d + Order::channel(j, g)));
      if (row >= end) x[k] = 0;
    }
    multiply(state.o[j], bytes_of<0x5410>(x[0], x[1]), bytes_of<0x7632>(x[0], x[1]),
             bytes_of<0x5410>(x[2], x[3]), bytes_of<0x7632>(x[2], x[3]), b[0], b[1]);
  }
}

}  // namespace kvart::cuda
