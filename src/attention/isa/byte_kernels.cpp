// Attention kernels on integer codes as bytes of code + zero, for instructions that multiply four
// unsigned bytes by four signed ones and add: codes by the high bytes of queries and probabilities,
// then, 256 times as much, by the low ones. What is due to the zeros is taken off as one figure a
// row. All of it is exact; only the last operation on a sum is in floats.
#if defined(KVART_ISA_avx512)

#include "attention/isa/byte_rows.h"
#include "attention/isa/prefetch.h"
#include "attention/isa/row_groups.h"

namespace kvart::KVART_ISA {
namespace {

constexpr int rows_at_a_time = 4;

// Per 128-bit lane the sums of a, b, c and d.
inline Sums sums_in_lanes(Sums a, Sums b, Sums c, Sums d) {
  const Sums ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const Sums cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

// Lane i: the sum of the lanes of x[i].
inline Sums sums_of_lanes(const Sums x[4]) {
  const auto halves = [](Sums a, Sums b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  };
  const Sums first = halves(x[0], x[1]);
  const Sums second = halves(x[2], x[3]);
  return _mm512_add_epi32(_mm512_shuffle_i32x4(first, second, 0x88),
                          _mm512_shuffle_i32x4(first, second, 0xdd));
}

// What turns sums of a tile of 1, 2, 3 or 4 rows into scores: lanes of a register go to the rows in
// turn, and a lone row has all four.
template <int rows>
struct SumsToScores {
  static constexpr int groups = rows == 3 ? 1 : 4 / rows;  // lanes of a row
  static constexpr int tokens = groups * score_group;
  Vec step;
  Vec added;
  Sums corrections[rows];

  SumsToScores(const int8_t* q, const float* steps, const float* addends, int head_dim, int zero) {
    alignas(64) float step_lanes[16] = {};
    alignas(64) float added_lanes[16] = {};
    for (int i = 0; i < rows * tokens; ++i) {
      step_lanes[i] = steps[i / tokens];
      added_lanes[i] = addends[i / tokens];
    }
    step = load(step_lanes);
    added = load(added_lanes);
    for (int r = 0; r < rows; ++r) {
      corrections[r] = correction(q + 2 * r * head_dim, head_dim, head_dim, zero);
    }
  }

  void store_scores(const Sums lanes[4], float* s) const {
    const Vec score = fma(_mm512_cvtepi32_ps(sums_of_lanes(lanes)), step, added);
    if constexpr (rows == 1) {
      store(s, score);
    } else if constexpr (rows == 2) {
      _mm256_storeu_ps(s, _mm512_castps512_ps256(score));
      _mm256_storeu_ps(s + score_stride, _mm512_extractf32x8_ps(score, 1));
    } else {
      _mm_storeu_ps(s, _mm512_castps512_ps128(score));
      _mm_storeu_ps(s + score_stride, _mm512_extractf32x4_ps(score, 1));
      _mm_storeu_ps(s + 2 * score_stride, _mm512_extractf32x4_ps(score, 2));
      if constexpr (rows == 4) {
        _mm_storeu_ps(s + 3 * score_stride, _mm512_extractf32x4_ps(score, 3));
      }
    }
  }
};

// One plane's products of `rows` rows with some tokens.
template <int rows, int tokens>
inline void add_plane(Sums sum[rows][tokens], const int8_t* q, int head_dim, const uint8_t* k) {
  int c = 0;
  const auto add_channels = [&](auto load) {
    Bytes query[rows];
    for (int r = 0; r < rows; ++r) query[r] = load(q + 2 * r * head_dim + c);
    for (int t = 0; t < tokens; ++t) {
      const Bytes key = load(k + t * head_dim + c);
      for (int r = 0; r < rows; ++r) sum[r][t] = add_products(sum[r][t], key, query[r]);
    }
  };
  for (; c + bytes_of_vector <= head_dim; c += bytes_of_vector) {
    add_channels([](const void* p) { return _mm512_loadu_si512(p); });
  }
  if (c < head_dim) add_channels([=](const void* p) { return load_bytes(p, head_dim - c); });
}

template <int rows>
inline void scores_tile(const int8_t* q, const SumsToScores<rows>& to, int head_dim,
                        const uint8_t* k, float* s) {
  constexpr int tokens = SumsToScores<rows>::tokens;
  constexpr int groups = SumsToScores<rows>::groups;
  Sums sum[rows][tokens];
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < tokens; ++t) sum[r][t] = _mm512_setzero_si512();
  }
  add_plane<rows, tokens>(sum, q, head_dim, k);
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < tokens; ++t) {
      sum[r][t] = _mm512_add_epi32(_mm512_slli_epi32(sum[r][t], 8), to.corrections[r]);
    }
  }
  add_plane<rows, tokens>(sum, q + head_dim, head_dim, k);
  Sums lanes[4];
  for (int i = 0; i < 4; ++i) {
    const int r = i / groups;
    const int t = i % groups * score_group;
    lanes[i] = r < rows ? sums_in_lanes(sum[r][t], sum[r][t + 1], sum[r][t + 2], sum[r][t + 3])
                        : _mm512_setzero_si512();
  }
  to.store_scores(lanes, s);
}

void scores(const int16_t* q, const float* step, const float* added, int rows, int head_dim,
            const CodeRows& k, float* s, Upcoming next) {
  const auto* keys = static_cast<const uint8_t*>(k.k);
  Fetching fetching(next, rows * k.tokens);
  for_row_groups<rows_at_a_time, false>(rows, [&]<int n>(int r) {
    const auto* query = reinterpret_cast<const int8_t*>(q + static_cast<size_t>(r) * head_dim);
    const SumsToScores<n> to(query, step + r, added + r, head_dim, k.zero);
    float* row = s + static_cast<size_t>(r) * score_stride;
    for (int t = 0; t < k.tokens; t += SumsToScores<n>::tokens) {
      fetching.ahead_of(n * SumsToScores<n>::tokens);
      scores_tile<n>(query, to, head_dim, keys + t * head_dim, row + t);
    }
  });
}

inline Bytes broadcast_four(const int8_t* p) {
  int four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm512_set1_epi32(four);
}

// One plane's products of `rows` rows with `vecs` times 16 channels. p: [rows][2][score_stride].
template <int rows, int vecs>
inline void add_plane_of_columns(Sums sum[rows][vecs], const int8_t* p, const uint8_t* v,
                                 int tokens, int head_dim) {
  for (int t = 0; t < tokens; t += 4, v += 4 * head_dim) {
    Bytes value[vecs];
    for (int i = 0; i < vecs; ++i) value[i] = _mm512_loadu_si512(v + i * bytes_of_vector);
    for (int r = 0; r < rows; ++r) {
      const Bytes four = broadcast_four(p + 2 * r * score_stride + t);
      for (int i = 0; i < vecs; ++i) sum[r][i] = add_products(sum[r][i], value[i], four);
    }
  }
}

// A function of its own: see word_kernels.cpp.
template <int rows, int vecs>
[[gnu::noinline]] void sums_tile(const int8_t* p, const Sums corrections[rows],
                                 const SumsToOutput joins[rows], const IntegerSums& what,
                                 int channel, float* o) {
  Sums sum[rows][vecs];
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < vecs; ++i) sum[r][i] = _mm512_setzero_si512();
  }
  const uint8_t* v = static_cast<const uint8_t*>(what.v) + 4 * channel;
  add_plane_of_columns<rows, vecs>(sum, p, v, what.tokens, what.head_dim);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < vecs; ++i) {
      sum[r][i] = _mm512_add_epi32(_mm512_slli_epi32(sum[r][i], 8), corrections[r]);
    }
  }
  add_plane_of_columns<rows, vecs>(sum, p + score_stride, v, what.tokens, what.head_dim);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < vecs; ++i) {
      joins[r].join(_mm512_cvtepi32_ps(sum[r][i]), channel + i * vec_lanes, o + r * what.head_dim);
    }
  }
}

void sums(const int16_t* p, const float* step, const float* added, int rows,
          const IntegerSums& what, float* o, Upcoming next) {
  Fetching fetching(next, rows * (what.end_channel - what.first_channel));
  for_row_groups<rows_at_a_time, false>(rows, [&]<int n>(int r) {
    const auto* row = reinterpret_cast<const int8_t*>(p + static_cast<size_t>(r) * score_stride) +
                      what.first_token;
    SumsToOutput joins[n];
    Sums corrections[n];
    for (int i = 0; i < n; ++i) {
      joins[i] = sums_to_output(what, r + i, step[r + i], added[r + i]);
      corrections[i] = _mm512_set1_epi32(_mm512_reduce_add_epi32(
          correction(row + 2 * i * score_stride, what.tokens, score_stride, what.zero)));
    }
    float* out = o + static_cast<size_t>(r) * what.head_dim;
    int c = what.first_channel;
    const auto take = [&]<int vecs>() {
      for (; c + vecs * vec_lanes <= what.end_channel; c += vecs * vec_lanes) {
        fetching.ahead_of(n * vecs * vec_lanes);
        sums_tile<n, vecs>(row, corrections, joins, what, c, out);
      }
    };
    take.template operator()<4>();
    take.template operator()<2>();
    take.template operator()<1>();
  });
}

}  // namespace

extern const IntegerKernels integer_kernels;
constinit const IntegerKernels integer_kernels = {
    CodeLayout::bytes,      false, nullptr, nullptr, queries<ByteRow>, scores, scale_scores,
    probabilities<ByteRow>, sums};

}  // namespace kvart::KVART_ISA

#endif
