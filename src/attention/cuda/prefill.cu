// Prefill attention: 64 queries of one block of a sequence at a time, for two query heads of a KV
// head, against one block of keys after the other. Any V goes with any K but those with several
// scales for a token: codes, or the rows of blocks in full precision, become tiles of f16 in shared
// memory once for all of these queries.
#include "attention/cuda/elements.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/tiles.cuh"
#include "kvart_format_headers.inc"

namespace kvart::cuda {

namespace {

constexpr int heads_at_once = 2;
constexpr int warps = 4 * heads_at_once;  // of 16 queries each
constexpr int threads = 32 * warps;
constexpr float log2_e = 1.44269504f;

// A tile of 64 rows of d f16, 16 bytes of which stay together; those of a row are in an order that
// depends on the row, so that a column of them lies in different banks.
template <int d>
struct Tile {
  static constexpr int bytes = 64 * d * 2;

  __device__ static int place(int row, int chunk) { return row * 2 * d + (chunk ^ (row & 7)) * 16; }
};

// Shared memory: what was copied of two blocks, two pairs of tiles, and parameters of their keys.
template <int d>
struct Memory {
  static constexpr int side_bytes = Tile<d>::bytes;  // codes and parameters take no more
  static constexpr int pair_bytes = 2 * side_bytes;
  static constexpr int parameter_bytes = 8 * d;
  static constexpr int bytes = 4 * pair_bytes + 2 * parameter_bytes;
};

// What of sealed keys is not in their tile, so that nothing but products with it is rounded: scales
// of tokens, which scores are multiplied by; or of channels the minima, and scales times the middle
// of the codes, whose products with a query are the same for all tokens of a group.
struct KeyRule {
  bool taken;  // false: there is no rule for them here
  bool by_token;
  int channel_groups;
  int centre;
};

template <class Values>
constexpr KeyRule key_rule() {
  const bool by_channel = Values::axis == ScaleAxis::channel;
  const bool by_token = Values::axis == ScaleAxis::token;
  return {!by_token || Values::group >= 256, by_token, by_channel ? 64 / Values::group : 0,
          by_channel ? 1 << (Values::code_bits - 1) : 0};
}

constexpr KeyRule key_rules[] = {
#define KVART_FORMAT(name) key_rule<isa_cuda::name::Values>(),
#include "kvart_formats.inc"
#undef KVART_FORMAT
};

// Codes where they lie in a half become whole numbers, less `zero`.
__device__ inline uint32_t whole(uint32_t x, int shift, int zero) {
  const uint32_t factor = (0x3c00u - (shift << 10)) * 0x00010001u;
  const float taken = -static_cast<float>((1024 >> shift) + zero);
  const uint32_t added = halves_of(taken, taken);
  x |= 0x64006400u;
  const __half2 y =
      __hfma2(*reinterpret_cast<const __half2*>(&x), *reinterpret_cast<const __half2*>(&factor),
              *reinterpret_cast<const __half2*>(&added));
  return *reinterpret_cast<const uint32_t*>(&y);
}

__device__ inline uint32_t product_and_sum(uint32_t a, uint32_t b, uint32_t c) {
  const __half2 y =
      __hfma2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b),
              *reinterpret_cast<const __half2*>(&c));
  return *reinterpret_cast<const uint32_t*>(&y);
}

// Two codes as numbers, those of keys about their rule's centre. step: of the order of codes.
template <class Values, int d, bool keys>
__device__ inline uint32_t numbers(uint32_t x, int step) {
  using Order = Codes<Values::kind, Values::code_bits, d>;
  constexpr int centre = keys ? key_rule<Values>().centre : 0;
  if constexpr (Values::kind == CodeKind::planes && Values::code_bits < 8) {
    return whole(x, Order::large * (step % Order::parts), Values::zero + centre);
  } else {
    return centre > 0 ? difference(x, halves_of(centre, centre)) : x;
  }
}

// One side of a block to a tile: each thread takes a quarter of a row. Rows from `rows` on become
// 0.
template <class Values, int d, bool keys>
__device__ void expand(const uint8_t* codes, const uint8_t* parameters, int rows, uint8_t* tile) {
  using Order = Codes<Values::kind, Values::code_bits, d>;
  constexpr bool by_channel = Values::axis == ScaleAxis::channel;
  constexpr bool by_token = Values::axis == ScaleAxis::token;
  constexpr int groups = by_channel ? 64 / Values::group * d
                                    : 64 * (by_token && Values::group < d ? d / Values::group : 1);
  const int row = static_cast<int>(threadIdx.x) / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  uint32_t words[Order::words];
  Order::load_row(codes + row * (d * Values::code_bits / 8), t, words);
#pragma unroll
  for (int s = 0; s < d / 16; ++s) {
    const int channel = Order::base(s, t);
    uint32_t x[2] = {numbers<Values, d, keys>(Order::first(words, s), s),
                     numbers<Values, d, keys>(Order::second(words, s), s)};
    [[maybe_unused]] uint32_t scale[2], minimum[2];
    if constexpr (by_channel) {
      const uint8_t* scales = parameters + 2 * (row / Values::group * d + channel);
      load_four<Order>(scales, scale[0], scale[1]);
      load_four<Order>(scales + 2 * groups, minimum[0], minimum[1]);
    } else if constexpr (by_token) {
      const auto* at = reinterpret_cast<const uint16_t*>(parameters) +
                       (Values::group < d ? channel / Values::group * 64 : 0) + row;
      scale[0] = scale[1] = at[0] * 0x00010001u;
      if constexpr (Values::has_minimum) minimum[0] = minimum[1] = at[groups] * 0x00010001u;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (keys && by_channel) {
        x[i] = product(x[i], scale[i]);
      } else if constexpr (Values::has_minimum) {
        x[i] = product_and_sum(x[i], scale[i], minimum[i]);
      } else if constexpr (by_token && !keys) {
        x[i] = product(x[i], scale[i]);
      }
    }
    uint2 four = {Order::interleaved ? bytes_of<0x5410>(x[0], x[1]) : x[0],
                  Order::interleaved ? bytes_of<0x7632>(x[0], x[1]) : x[1]};
    if (row >= rows) four = {0, 0};
    *reinterpret_cast<uint2*>(tile + Tile<d>::place(row, channel / 8) + channel % 8 * 2) = four;
  }
}

enum Index {
#define KVART_FORMAT(name) index_##name,
#include "kvart_formats.inc"
#undef KVART_FORMAT
};

// format < 0: rows in full precision.
template <int d, bool keys>
__device__ void expand_side(int format, const uint8_t* side, int parameters, int rows,
                            uint8_t* tile) {
  switch (format) {
#define KVART_FORMAT(name) \
  case index_##name:       \
    return expand<isa_cuda::name::Values, d, keys>(side, side + parameters, rows, tile);
#include "kvart_formats.inc"
#undef KVART_FORMAT
    default:
      return expand<isa_cuda::f16::Values, d, keys>(side, nullptr, rows, tile);
  }
}

// The blocks that a tile's queries see, as they come into shared memory.
template <int d>
class Blocks {
 public:
  __device__ Blocks(const PrefillJob& job, const KeyRule& rule, const PlannedTile& tile,
                    int kv_head, uint8_t* memory, uint64_t* barriers)
      : job_(&job),
        rule_(rule),
        tile_(tile),
        kv_head_(kv_head),
        memory_(memory),
        barriers_(barriers) {}

  // By one thread. i: since the first block that is seen.
  __device__ void send(int block, int i) const {
    const AttendJob& attend = job_->attend;
    const LayerPlace& place = attend.place;
    const BlockAddress at = attend.plan.table[tile_.table + block];
    uint8_t* to = memory_ + i % 2 * Memory<d>::pair_bytes;
    uint64_t* barrier = barriers_ + i % 2;
    const bool full = is_full(block);
    const uint8_t* k = full ? at.slot + place.slot_k + kv_head_ * place.slot_stride
                            : at.page + place.page_k + kv_head_ * place.page_stride;
    const uint8_t* v = full ? at.slot + place.slot_v + kv_head_ * place.slot_stride
                            : at.page + place.page_v + kv_head_ * place.page_stride;
    const int k_bytes = full ? Tile<d>::bytes : job_->k_bytes;
    const int v_bytes = full ? Tile<d>::bytes : job_->v_bytes;
    barrier_expect(barrier, k_bytes + v_bytes);
    // Other tiles read the same blocks.
    bulk_copy(to, k, k_bytes, barrier, evict_normally());
    bulk_copy(to + Memory<d>::side_bytes, v, v_bytes, barrier, evict_normally());
  }

  // By all threads, into pair i % 2 of the tiles.
  __device__ void expand_pair(int block, int i) const {
    const AttendJob& attend = job_->attend;
    barrier_wait(barriers_ + i % 2, i / 2 & 1);
    const uint8_t* from = memory_ + i % 2 * Memory<d>::pair_bytes;
    uint8_t* to = pair(i);
    const bool full = is_full(block);
    const int rows = full ? tile_.position + tile_.count - block * 64 : 64;
    expand_side<d, true>(full ? -1 : attend.k_format, from, attend.k_parameters, rows, to);
    expand_side<d, false>(full ? -1 : attend.v_format, from + Memory<d>::side_bytes,
                          attend.v_parameters, rows, to + Memory<d>::side_bytes);
    const int bytes = rule_.by_token ? 2 * 64 : 4 * d * rule_.channel_groups;
    const int at = 16 * static_cast<int>(threadIdx.x);
    if (!full && at < bytes) {
      *reinterpret_cast<uint4*>(parameters(i) + at) =
          *reinterpret_cast<const uint4*>(from + attend.k_parameters + at);
    }
  }

  __device__ uint8_t* pair(int i) const { return memory_ + (2 + i % 2) * Memory<d>::pair_bytes; }
  __device__ uint8_t* parameters(int i) const {
    return memory_ + 4 * Memory<d>::pair_bytes + i % 2 * Memory<d>::parameter_bytes;
  }
  __device__ bool is_full(int block) const {
    return block == tile_.position / 64 || block < job_->attend.sink_blocks;
  }

 private:
  const PrefillJob* job_;
  KeyRule rule_;
  PlannedTile tile_;
  int kv_head_;
  uint8_t* memory_;
  uint64_t* barriers_;
};

// What a warp has of its 16 queries. Thread 4 g + t: queries g and g + 8, of every 8 channels 2 t
// and 2 t + 1.
template <int d>
struct Queries {
  uint32_t q[d / 16][4];
  float o[d / 8][4];
  float maximum[2];
  float sum[2];  // of this thread's keys

  // first: the row of query 0; so many of its queries there are.
  __device__ void load(const AttendJob& job, int first, int count, int head) {
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = g + 8 * half;
      const size_t row = static_cast<size_t>(first + query) * job.params.q_heads + head;
      const auto* from =
          reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(job.q) + row * d) + t;
#pragma unroll
      for (int s = 0; s < d / 16; ++s) {
        uint32_t x = query < count ? from[8 * s] : 0u;
        uint32_t y = query < count ? from[8 * s + 4] : 0u;
        if (job.type == Element::bf16) {
          x = halves_of_bfloats(x);
          y = halves_of_bfloats(y);
        }
        q[s][half] = x;
        q[s][half + 2] = y;
      }
      maximum[half] = -INFINITY;
      sum[half] = 0.0f;
    }
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& x : tile) x = 0.0f;
    }
  }

  // What a group of channels' scales and minima adds to the scores of queries g and g + 8: one
  // product, whose even columns are the minima and whose odd ones are the scales.
  __device__ void offsets(const uint8_t* parameters, const KeyRule& rule, int group,
                          float (&out)[2]) const {
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    const uint8_t* from =
        parameters + 2 * d * (group + (g % 2 == 0 ? rule.channel_groups : 0)) + 4 * t;
    float sum[4] = {};
#pragma unroll
    for (int s = 0; s < d / 16; ++s) {
      const auto* at = reinterpret_cast<const uint32_t*>(from + 32 * s);
      multiply(sum, q[s][0], q[s][1], q[s][2], q[s][3], at[0], at[4]);
    }
    const auto centre = static_cast<float>(rule.centre);
    out[0] = fmaf(sum[1], centre, sum[0]);
    out[1] = fmaf(sum[3], centre, sum[2]);
  }

  // Of 64 keys, in powers of 2: element e of tile n is key 8 n + 2 t + e % 2 of query g + 8 (e /
  // 2). rule: what is to be done with `parameters`.
  __device__ void scores(const uint8_t* k, const uint8_t* parameters, const KeyRule& rule,
                         float unit, float (&out)[8][4]) const {
    const int lane = threadIdx.x % 32;
    const int row = lane % 8 + lane / 16 * 8;
    float offset[2][2] = {};
    if (rule.channel_groups > 0) {
      offsets(parameters, rule, 0, offset[0]);
      offsets(parameters, rule, rule.channel_groups - 1, offset[1]);
    }
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] = out[n + 1][e] = offset[n / 4][e / 2];
#pragma unroll
      for (int s = 0; s < d / 16; ++s) {
        uint32_t b[4];
        load_matrices(k + Tile<d>::place(8 * n + row, 2 * s + lane / 8 % 2), b);
        multiply(out[n], q[s][0], q[s][1], q[s][2], q[s][3], b[0], b[1]);
        multiply(out[n + 1], q[s][0], q[s][1], q[s][2], q[s][3], b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float2 scale = {1.0f, 1.0f};
      if (rule.by_token) {
        const int key = 8 * n + 2 * (lane % 4);
        scale = __half22float2(*reinterpret_cast<const __half2*>(parameters + 2 * key));
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= unit * (e % 2 == 0 ? scale.x : scale.y);
    }
  }

  // Scores become probabilities, and what is there is scaled to their maximum.
  __device__ void softmax(float (&s)[8][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = maximum[half];
#pragma unroll
      for (const auto& tile : s) most = fmaxf(most, fmaxf(tile[2 * half], tile[2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float finite = most == -INFINITY ? 0.0f : most;
      const float factor = exp2_approximate(maximum[half] - finite);
      maximum[half] = most;
      float added = 0.0f;
#pragma unroll
      for (auto& tile : s) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          tile[e] = exp2_approximate(tile[e] - finite);
          added += tile[e];
        }
      }
      sum[half] = fmaf(sum[half], factor, added);
#pragma unroll
      for (auto& tile : o) {
        tile[2 * half] *= factor;
        tile[2 * half + 1] *= factor;
      }
    }
  }

  __device__ void add(const uint8_t* v, const float (&p)[8][4]) {
    const int lane = threadIdx.x % 32;
    const int row = lane % 16;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      const uint32_t a[4] = {halves_of(p[n][0], p[n][1]), halves_of(p[n][2], p[n][3]),
                             halves_of(p[n + 1][0], p[n + 1][1]),
                             halves_of(p[n + 1][2], p[n + 1][3])};
#pragma unroll
      for (int c = 0; c < d / 8; c += 2) {
        uint32_t b[4];
        load_matrices_transposed(v + Tile<d>::place(8 * n + row, c + lane / 16), b);
        multiply(o[c], a[0], a[1], a[2], a[3], b[0], b[1]);
        multiply(o[c + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  __device__ void store(const AttendJob& job, int first, int count, int head) {
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float all = sum[half];
      all += __shfl_xor_sync(~0u, all, 1);
      all += __shfl_xor_sync(~0u, all, 2);
      const int query = g + 8 * half;
      if (query >= count) continue;
      const float inverse = 1.0f / all;
      const size_t row = static_cast<size_t>(first + query) * job.params.q_heads + head;
#pragma unroll
      for (int c = 0; c < d / 8; ++c) {
        const size_t at = row * d + 8 * c + 2 * t;
        store_element(job.type, job.out, at, o[c][2 * half] * inverse);
        store_element(job.type, job.out, at + 1, o[c][2 * half + 1] * inverse);
      }
    }
  }
};

// Soft-cap, and what the queries from `position` on don't see of the 64 keys from `key` on.
__device__ inline void mask(const AttentionParams& params, int position, int key,
                            float (&s)[8][4]) {
  const float soft_cap = params.soft_cap * log2_e;
  if (soft_cap != 0.0f) {
#pragma unroll
    for (auto& tile : s) {
#pragma unroll
      for (float& x : tile) x = soft_cap * tanhf(x / soft_cap);
    }
  }
  const bool window = params.window > 0 && key <= position + 15 - params.window;
  if (key + 63 <= position && !window) return;
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int behind = position + g + 8 * (e / 2) - (key + 8 * n + 2 * t + e % 2);
      if (behind < 0 || (params.window > 0 && behind >= params.window)) s[n][e] = -INFINITY;
    }
  }
}

template <int d>
__global__ void __launch_bounds__(threads, 1) prefill(PrefillJob job, KeyRule sealed_rule) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ uint64_t barriers[2];
  const AttendJob& attend = job.attend;
  // The last tiles have most to do: they come first.
  const PlannedTile tile = attend.plan.tiles[gridDim.x - 1 - blockIdx.x];
  if (tile.count == 0) return;
  if (threadIdx.x < 2) barrier_init(&barriers[threadIdx.x]);
  before_bulk_copies();
  __syncthreads();
  const int group = attend.params.q_heads / attend.place.kv_heads;
  const int pairs = (group + heads_at_once - 1) / heads_at_once;
  const int kv_head = static_cast<int>(blockIdx.y) / pairs;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int in_group = static_cast<int>(blockIdx.y) % pairs * heads_at_once + warp / 4;
  const int first_query = 16 * (warp % 4);
  const bool used = in_group < group && first_query < tile.count;
  const int head = kv_head * group + (used ? in_group : 0);
  const int count = used ? tile.count - first_query : 0;
  const int window = attend.params.window;
  const int begin = window > 0 && tile.position >= window ? (tile.position - window + 1) / 64 : 0;
  const int blocks = tile.position / 64 + 1 - begin;
  const Blocks<d> coming(job, sealed_rule, tile, kv_head, memory, barriers);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 && i < blocks; ++i) coming.send(begin + i, i);
  }
  Queries<d> queries;
  queries.load(attend, tile.row + first_query, count, head);
  const float unit = attend.params.scale * log2_e;
  for (int i = 0; i < blocks; ++i) {
    coming.expand_pair(begin + i, i);
    __syncthreads();
    if (threadIdx.x == 0 && i + 2 < blocks) coming.send(begin + i + 2, i + 2);
    if (!used) continue;
    float s[8][4];
    const KeyRule rule = coming.is_full(begin + i) ? KeyRule{} : sealed_rule;
    queries.scores(coming.pair(i), coming.parameters(i), rule, unit, s);
    mask(attend.params, tile.position + first_query, (begin + i) * 64, s);
    queries.softmax(s);
    queries.add(coming.pair(i) + Memory<d>::side_bytes, s);
  }
  queries.store(attend, tile.row + first_query, count, head);
}

template <int d>
cudaError_t launch(const PrefillJob& job, int tiles, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      prefill<d>, cudaFuncAttributeMaxDynamicSharedMemorySize, Memory<d>::bytes);
  if (error != cudaSuccess) return error;
  const int kv_heads = job.attend.place.kv_heads;
  const int group = job.attend.params.q_heads / kv_heads;
  const dim3 grid(tiles, kv_heads * ((group + heads_at_once - 1) / heads_at_once));
  prefill<d><<<grid, threads, Memory<d>::bytes, stream>>>(job, key_rules[job.attend.k_format]);
  return cudaGetLastError();
}

}  // namespace

bool launch_prefill_attention(const PrefillJob& job, int tiles, cudaStream_t stream,
                              cudaError_t* error) {
  if (job.attend.type == Element::f32 || !key_rules[job.attend.k_format].taken) return false;
  switch (job.attend.place.head_dim) {
    case 64:
      *error = launch<64>(job, tiles, stream);
      return true;
    case 128:
      *error = launch<128>(job, tiles, stream);
      return true;
    default:
      return false;
  }
}

}  // namespace kvart::cuda
