// Products with floats as they are stored: what a register decodes is multiplied for up to four
// rows at once and never written. The values and the order of all sums are those of decoded rows.
#pragma once

#include "attention/isa/prefetch.h"
#include "attention/isa/row_groups.h"
#include "attention/isa/vec.h"

namespace kvart::KVART_ISA {

#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)

constexpr int packed_float_rows = 4;
// Sums of a tile: enough that none waits for the one before, and what they are made of fits beside
// them.
constexpr int tile_sums = vec_lanes == 16 ? 16 : 8;

struct Halves {
  static constexpr int bytes = 2;
  static Vec load(const uint8_t* p, float /*scale*/) { return load_halves(p); }
};
struct Bfloats {
  static constexpr int bytes = 2;
  static Vec load(const uint8_t* p, float /*scale*/) { return load_bfloats(p); }
};
struct ScaledE4m3 {
  static constexpr int bytes = 1;
  static Vec load(const uint8_t* p, float scale) {
    return mul(load_small_e4m3(p), broadcast(scale * 256.0f));
  }
};

// Calls function(values) with the type for the packing.
template <class Function>
inline void with_packed_floats(Packing packing, Function function) {
  if (packing == Packing::halves) function(Halves{});
  if (packing == Packing::bfloats) function(Bfloats{});
  if (packing == Packing::e4m3) function(ScaledE4m3{});
}

// Scores of `rows` rows and as many tokens as there are sums for, two or four.
template <class Values, int rows, int tokens>
inline void packed_scores_tile(const float* q, int head_dim, const PackedRows& k, int first,
                               float* s) {
  Vec sum[rows][tokens];
  float scale[tokens];
  for (int t = 0; t < tokens; ++t) {
    scale[t] = k.scales == nullptr ? 1.0f : k.scales[first + t];
    for (int r = 0; r < rows; ++r) sum[r][t] = broadcast(0.0f);
  }
  const uint8_t* codes = k.codes + first * k.row_bytes;
  int c = 0;
  do {  // at least once: the sums then never leave their registers
    Vec key[tokens];
    for (int t = 0; t < tokens; ++t) {
      key[t] = Values::load(codes + t * k.row_bytes + c * Values::bytes, scale[t]);
    }
    for (int r = 0; r < rows; ++r) {
      const Vec query = load(q + r * head_dim + c);
      for (int t = 0; t < tokens; ++t) sum[r][t] = kept(fma(query, key[t], sum[r][t]));
    }
    c += vec_lanes;
  } while (c < head_dim);
  if constexpr (tokens == 4) {
    for (int r = 0; r < rows; ++r) {
      store_transposed_sums(s + r * score_stride, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    }
  } else {
    for (int r = 0; r < rows; r += 2) {
      const int other = r + 1 < rows ? r + 1 : r;
      float out[4];
      store_transposed_sums(out, sum[r][0], sum[r][1], sum[other][0], sum[other][1]);
      float* row = s + r * score_stride;
      row[0] = out[0];
      row[1] = out[1];
      if (other == r) break;
      row[score_stride] = out[2];
      row[score_stride + 1] = out[3];
    }
  }
}

inline void packed_scores(const float* q, int rows, int head_dim, const PackedRows& k, float* s,
                          Upcoming next) {
  Fetching fetching(next, rows * k.tokens);
  with_packed_floats(k.packing, [&]<class Values>(Values) {
    for_row_groups<packed_float_rows, true>(rows, [&]<int n>(int r) {
      constexpr int tokens = n * 4 <= tile_sums ? 4 : 2;
      const float* query = q + static_cast<size_t>(r) * head_dim;
      float* row = s + static_cast<size_t>(r) * score_stride;
      for (int t = 0; t < k.tokens; t += tokens) {
        fetching.ahead_of(n * tokens);
        packed_scores_tile<Values, n, tokens>(query, head_dim, k, t, row + t);
      }
    });
  });
}

// Output of `rows` rows and `vecs` vectors of channels.
template <class Values, int rows, int vecs>
inline void packed_sum_tile(const float* p, int head_dim, const PackedRows& v, int channel,
                            const float* factor, float* o) {
  Vec sum[rows][vecs];
  for (int r = 0; r < rows; ++r) {
    const Vec f = broadcast(factor == nullptr ? 1.0f : factor[r]);
    for (int i = 0; i < vecs; ++i) {
      const Vec before = load(o + r * head_dim + i * vec_lanes);
      sum[r][i] = factor == nullptr ? before : mul(before, f);
    }
  }
  const uint8_t* codes = v.codes + channel * Values::bytes;
  for (int t = 0; t < v.tokens; ++t, codes += v.row_bytes) {
    const float scale = v.scales == nullptr ? 1.0f : v.scales[t];
    Vec value[vecs];
    for (int i = 0; i < vecs; ++i) {
      value[i] = Values::load(codes + i * vec_lanes * Values::bytes, scale);
    }
    for (int r = 0; r < rows; ++r) {
      const Vec probability = broadcast(p[r * score_stride + t]);
      for (int i = 0; i < vecs; ++i) sum[r][i] = kept(fma(probability, value[i], sum[r][i]));
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < vecs; ++i) store(o + r * head_dim + i * vec_lanes, sum[r][i]);
  }
}

inline void packed_sum(const float* p, int rows, int head_dim, const PackedRows& v,
                       const float* factor, float* o, Upcoming next) {
  Fetching fetching(next, rows * head_dim);
  with_packed_floats(v.packing, [&]<class Values>(Values) {
    for_row_groups<packed_float_rows, true>(rows, [&]<int n>(int r) {
      constexpr int vecs = tile_sums / n > 4 ? 4 : tile_sums / n == 3 ? 2 : tile_sums / n;
      const float* row = p + static_cast<size_t>(r) * score_stride;
      const float* factors = factor == nullptr ? nullptr : factor + r;
      float* out = o + static_cast<size_t>(r) * head_dim;
      int c = 0;
      for (; c + vecs * vec_lanes <= head_dim; c += vecs * vec_lanes) {
        fetching.ahead_of(n * vecs * vec_lanes);
        packed_sum_tile<Values, n, vecs>(row, head_dim, v, c, factors, out + c);
      }
      for (; c < head_dim; c += vec_lanes) {
        fetching.ahead_of(n * vec_lanes);
        packed_sum_tile<Values, n, 1>(row, head_dim, v, c, factors, out + c);
      }
    });
  });
}

#else

constexpr decltype(AttentionKernels::packed_scores) packed_scores = nullptr;
constexpr decltype(AttentionKernels::packed_sum) packed_sum = nullptr;

#endif

}  // namespace kvart::KVART_ISA
