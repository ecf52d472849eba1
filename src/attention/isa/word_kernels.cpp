// Attention kernels on integer codes as 16-bit words: products in pairs into 32-bit sums, which are
// exact. Only the last operation on a sum is in floats, so a result is the same bits however rows
// and tokens are tiled.
#if !defined(KVART_ISA_avx512)

#include "attention/isa/integer_rows.h"
#include "attention/isa/ivec.h"
#include "attention/isa/packed_words.h"
#include "attention/isa/prefetch.h"
#include "attention/isa/row_groups.h"

namespace kvart::KVART_ISA {
namespace {

struct WordRow {
  static void store(const float* y, Vec factor, int n, int /*length*/, int16_t* row) {
    for (int i = 0; i < n; i += vec_lanes) store_rounded(mul(load(y + i), factor), row + i);
  }
};

// Scores of `rows` rows and four tokens.
template <int rows>
inline void scores_tile(const int16_t* q, const float* step, const float* added, int head_dim,
                        const int16_t* k, float* s) {
  Sums sum[rows][score_group];
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < score_group; ++t) sum[r][t] = no_sum();
  }
  int c = 0;
  do {  // at least once: the sums then never leave their registers
    for (int t = 0; t < score_group; ++t) {
      const IVec key = load_words(k + t * head_dim + c);
      for (int r = 0; r < rows; ++r) {
        sum[r][t] = add_products(sum[r][t], load_words(q + r * head_dim + c), key);
      }
    }
    c += ivec_words;
  } while (c < head_dim);
  for (int r = 0; r < rows; ++r) {
    store_integer_sums(s + r * score_stride, step[r], added[r], sum[r][0], sum[r][1], sum[r][2],
                       sum[r][3]);
  }
}

void scores(const int16_t* q, const float* step, const float* added, int rows, int head_dim,
            const CodeRows& k, float* s, Upcoming next) {
  const auto* keys = static_cast<const int16_t*>(k.k);
  Fetching fetching(next, rows * k.tokens);
  for_row_groups<score_rows, true>(rows, [&]<int n>(int r) {
    const int16_t* query = q + static_cast<size_t>(r) * head_dim;
    float* row = s + static_cast<size_t>(r) * score_stride;
    for (int t = 0; t < k.tokens; t += score_group) {
      fetching.ahead_of(n * score_group);
      scores_tile<n>(query, step + r, added + r, head_dim, keys + t * head_dim, row + t);
    }
  });
}

// Output of `rows` rows and `vecs` vectors of channels. A function of its own: inlined, what joins
// the sums to the output is loaded before the loop and takes their registers.
template <int rows, int vecs>
[[gnu::noinline]] void sums_tile(const int16_t* p, const SumsToOutput* joins,
                                 const IntegerSums& what, int channel, float* o) {
  Sums sum[rows][vecs];
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < vecs; ++i) sum[r][i] = no_sum();
  }
  const int16_t* v = static_cast<const int16_t*>(what.v) + 2 * channel;
  for (int t = 0; t < what.tokens; t += 2, v += 2 * what.head_dim) {
    for (int r = 0; r < rows; ++r) {
      const IVec pair = broadcast_pair(p + r * score_stride + t);
      for (int i = 0; i < vecs; ++i) {
        sum[r][i] = add_products(sum[r][i], pair, load_words(v + i * ivec_words));
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < vecs; ++i) {
      joins[r].join(to_float(sum[r][i]), channel + i * vec_lanes, o + r * what.head_dim);
    }
  }
}

void sums(const int16_t* p, const float* step, const float* added, int rows,
          const IntegerSums& what, float* o, Upcoming next) {
  Fetching fetching(next, rows * (what.end_channel - what.first_channel));
  for_row_groups<sum_rows, true>(rows, [&]<int n>(int r) {
    SumsToOutput joins[n];
    for (int i = 0; i < n; ++i) joins[i] = sums_to_output(what, r + i, step[r + i], added[r + i]);
    const int16_t* row = p + static_cast<size_t>(r) * score_stride + what.first_token;
    float* out = o + static_cast<size_t>(r) * what.head_dim;
    int c = what.first_channel;
    for (; c + 4 * vec_lanes <= what.end_channel; c += 4 * vec_lanes) {
      fetching.ahead_of(n * 4 * vec_lanes);
      sums_tile<n, 4>(row, joins, what, c, out);
    }
    for (; c < what.end_channel; c += vec_lanes) {
      fetching.ahead_of(n * vec_lanes);
      sums_tile<n, 1>(row, joins, what, c, out);
    }
  });
}

}  // namespace

extern const IntegerKernels integer_kernels;
constinit const IntegerKernels integer_kernels = {
    CodeLayout::words,      false,      nullptr, nullptr, queries<WordRow>, scores, scale_scores,
    probabilities<WordRow>, sums,
#if defined(KVART_ISA_avx2)
    packed_scores,          packed_sums
#endif
};

}  // namespace kvart::KVART_ISA

#endif
