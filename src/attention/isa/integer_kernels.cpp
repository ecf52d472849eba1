// Attention kernels on integer codes: queries and probabilities as 16-bit integers of one step a
// row, products in pairs into 32-bit sums, which are exact. Only the last operation on a sum is in
// floats, so a result is the same bits however rows and tokens are tiled.
#include "attention/isa/ivec.h"
#include "attention/isa/prefetch.h"
#include "attention/isa/row_groups.h"
#include "attention/kernels.h"

namespace kvart::KVART_ISA {
namespace {

constexpr float largest_word = 32767.0f;
constexpr int max_head_dim = 256;

// The step for integers whose largest value is that of a vector's lanes. `zeros` are sums of 0 *
// each value: NaN where one is NaN or infinite, and the step then too.
inline float step_of(Vec largest, Vec zeros, float& inverse) {
  const float top = lanes_max(largest);
  inverse = top > 1e-34f ? largest_word / top : 0.0f;
  return (inverse > 0 ? top * (1 / largest_word) : 0.0f) + lanes_sum(zeros);
}

// words[i] * step ~ x[i] * scales[i] (scales null: 1). Returns the sum of x[i] * offsets[i] (null:
// 1). n: a multiple of vec_lanes, at most max_head_dim.
inline float row_to_words(const float* x, int n, const float* scales, const float* offsets,
                          int16_t* words, float& step) {
  float scaled[max_head_dim];
  Vec largest = broadcast(0.0f);
  Vec zeros = broadcast(0.0f);
  Vec sum = broadcast(0.0f);
  for (int i = 0; i < n; i += vec_lanes) {
    const Vec plain = load(x + i);
    const Vec value = scales == nullptr ? plain : mul(plain, load(scales + i));
    if (scales != nullptr) store(scaled + i, value);
    largest = larger(magnitude(value), largest);
    zeros = fma(value, broadcast(0.0f), zeros);
    sum = offsets == nullptr ? add(sum, plain) : fma(plain, load(offsets + i), sum);
  }
  float inverse;
  step = step_of(largest, zeros, inverse);
  const float* values = scales == nullptr ? x : scaled;
  const Vec factor = broadcast(inverse);
  for (int i = 0; i < n; i += vec_lanes) store_rounded(mul(load(values + i), factor), words + i);
  return lanes_sum(sum);
}

void integer_queries(const float* q, int rows, int head_dim, const float* scales,
                     const float* offsets, int16_t* words, float* step, float* added) {
  for (int r = 0; r < rows; ++r, q += head_dim, words += head_dim) {
    const float sum = row_to_words(q, head_dim, scales, offsets, words, step[r]);
    added[r] = offsets == nullptr ? 0 : sum;
  }
}

// Scores of `rows` rows and four tokens.
template <int rows>
inline void integer_scores_tile(const int16_t* q, const float* step, const float* added,
                                int head_dim, const int16_t* k, float* s) {
  Sums sum[rows][score_group];
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < score_group; ++t) sum[r][t] = no_sum();
  }
  int c = 0;
  const auto add_channels = [&](auto load) {
    for (int t = 0; t < score_group; ++t) {
      const IVec key = load(k + t * head_dim + c);
      for (int r = 0; r < rows; ++r) {
        sum[r][t] = kept(add_products(sum[r][t], load(q + r * head_dim + c), key));
      }
    }
  };
  const auto store_scores = [&] {
    for (int r = 0; r < rows; ++r) {
      store_integer_sums(s + r * score_stride, step[r], added[r], sum[r][0], sum[r][1], sum[r][2],
                         sum[r][3]);
    }
  };
#if defined(KVART_ISA_avx512)
  if (head_dim % ivec_words != 0) {
    add_channels([](const int16_t* p) { return load_half_words(p); });
    c = 16;
    if (head_dim == 16) return store_scores();
  }
#endif
  do {  // at least once: the sums then never leave their registers
    add_channels([](const int16_t* p) { return load_words(p); });
    c += ivec_words;
  } while (c < head_dim);
  store_scores();
}

void integer_scores(const int16_t* q, const float* step, const float* added, int rows, int head_dim,
                    const int16_t* k, int tokens, float* s, Upcoming& next) {
  for_row_groups<score_rows, true>(rows, [&]<int n>(int r) {
    const int16_t* query = q + static_cast<size_t>(r) * head_dim;
    float* row = s + static_cast<size_t>(r) * score_stride;
    for (int t = 0; t < tokens; t += score_group) {
      fetch_part(next);
      integer_scores_tile<n>(query, step + r, added + r, head_dim, k + t * head_dim, row + t);
    }
  });
}

void scale_scores(float* s, int rows, const float* scales) {
  for (int r = 0; r < rows; ++r) {
    float* row = s + static_cast<size_t>(r) * score_stride;
    for (int t = 0; t < score_stride; t += vec_lanes) {
      store(row + t, mul(load(row + t), load(scales + t)));
    }
  }
}

void integer_probabilities(const float* p, int rows, int tokens, const float* scales,
                           const float* offsets, int16_t* words, float* step, float* added) {
  for (int r = 0; r < rows; ++r, p += score_stride, words += score_stride) {
    added[r] = row_to_words(p, tokens, scales, offsets, words, step[r]);
  }
}

// Output of `rows` rows and `vecs` vectors of channels.
template <int rows, int vecs>
inline void integer_sum_tile(const int16_t* p, const float* step, const float* added,
                             const IntegerSums& a, int channel, float* o) {
  Sums sum[rows][vecs];
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < vecs; ++i) sum[r][i] = no_sum();
  }
  const int16_t* v = a.v + 2 * channel;
  for (int t = 0; t < a.tokens; t += 2, v += 2 * a.head_dim) {
    for (int r = 0; r < rows; ++r) {
      const IVec pair = broadcast_pair(p + r * score_stride + t);
      for (int i = 0; i < vecs; ++i) {
        sum[r][i] = kept(add_products(sum[r][i], pair, load_words(v + i * ivec_words)));
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    const Vec row_step = broadcast(step[r]);
    for (int i = 0; i < vecs; ++i) {
      const int c = channel + i * vec_lanes;
      Vec out = load(o + r * a.head_dim + c);
      if (a.factor != nullptr) out = mul(out, broadcast(a.factor[r]));
      const Vec scale =
          a.channel_scales == nullptr ? row_step : mul(row_step, load(a.channel_scales + c));
      out = fma(to_float(sum[r][i]), scale, out);
      if (a.add) {
        const Vec addend = broadcast(added[r]);
        out = a.channel_offsets == nullptr ? add(out, addend)
                                           : fma(addend, load(a.channel_offsets + c), out);
      }
      store(o + r * a.head_dim + c, out);
    }
  }
}

void integer_sums(const int16_t* p, const float* step, const float* added, int rows,
                  const IntegerSums& sums, float* o, Upcoming& next) {
  for_row_groups<sum_rows, true>(rows, [&]<int n>(int r) {
    const int16_t* row = p + static_cast<size_t>(r) * score_stride;
    IntegerSums of_rows = sums;
    if (sums.factor != nullptr) of_rows.factor = sums.factor + r;
    float* out = o + static_cast<size_t>(r) * sums.head_dim;
    int c = sums.first_channel;
    for (; c + 4 * vec_lanes <= sums.end_channel; c += 4 * vec_lanes) {
      fetch_part(next);
      integer_sum_tile<n, 4>(row, step + r, added + r, of_rows, c, out);
    }
    for (; c < sums.end_channel; c += vec_lanes) {
      integer_sum_tile<n, 1>(row, step + r, added + r, of_rows, c, out);
    }
  });
}

}  // namespace

extern const IntegerKernels integer_kernels;
constinit const IntegerKernels integer_kernels = {integer_queries, integer_scores, scale_scores,
                                                  integer_probabilities, integer_sums};

}  // namespace kvart::KVART_ISA
