// Attention kernels on Vec: register-tiled products, the soft-max step, the merge of spans. No call
// of a library's inline function is made here, as each is compiled for this instruction set only.
#include "attention/kernels.h"

#include "attention/isa/packed_floats.h"
#include "attention/isa/prefetch.h"
#include "attention/isa/row_groups.h"
#include "attention/isa/vec.h"

namespace kvart::KVART_ISA {
namespace {

constexpr float log2_e = 1.44269504088896341f;
constexpr float minus_infinity = -__builtin_inff();

// 2^x for x <= 127 within 2e-7, exact at integers; 0 below -126.5; NaN stays NaN.
// 2^x = 2^n * 2^f, n the nearest integer; 2^f on [-1/2, 1/2] as a minimax polynomial with constant
// term 1.
inline Vec exp2(Vec x) {
  const Vec shift = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  x = larger(broadcast(-127.0f), x);
  const Vec shifted = add(x, shift);
  const Vec f = sub(x, sub(shifted, shift));
  Vec p = broadcast(0x1.5bba14p-10f);
  p = fma(p, f, broadcast(0x1.3cea88p-7f));
  p = fma(p, f, broadcast(0x1.c6b752p-5f));
  p = fma(p, f, broadcast(0x1.ebf9bcp-3f));
  p = fma(p, f, broadcast(0x1.62e42ap-1f));
  p = fma(p, f, broadcast(1.0f));
  return mul(p, power_of_shifted(shifted));
}

inline float exp2_of(float x) {
  float lanes[vec_lanes];
  store(lanes, exp2(broadcast(x)));
  return lanes[0];
}

// tanh(x) = 1 - 2 / (e^2x + 1)
inline Vec tanh(Vec x) {
  Vec e = mul(x, broadcast(2 * log2_e));
  e = smaller(broadcast(126.0f), larger(broadcast(-126.0f), e));
  return sub(broadcast(1.0f), div(broadcast(2.0f), add(exp2(e), broadcast(1.0f))));
}

// Scores of `rows` rows and `groups` groups of four tokens.
template <int rows, int groups>
inline void scores_tile(const float* q, int head_dim, const float* k, float* s) {
  constexpr int tokens = groups * score_group;
  Vec sum[rows][tokens];
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < tokens; ++t) sum[r][t] = broadcast(0.0f);
  }
  int c = 0;
  do {  // at least once: the sums then never leave their registers
    Vec query[rows];
    for (int r = 0; r < rows; ++r) query[r] = load(q + r * head_dim + c);
    for (int t = 0; t < tokens; ++t) {
      const Vec key = load(k + t * head_dim + c);
      for (int r = 0; r < rows; ++r) sum[r][t] = kept(fma(query[r], key, sum[r][t]));
    }
    c += vec_lanes;
  } while (c < head_dim);
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < tokens; t += score_group) {
      store_transposed_sums(s + r * score_stride + t, sum[r][t], sum[r][t + 1], sum[r][t + 2],
                            sum[r][t + 3]);
    }
  }
}

void scores(const float* q, int rows, int head_dim, const float* k, int tokens, float* s,
            Upcoming next) {
  Fetching fetching(next, rows * tokens);
  for_row_groups<score_rows, false>(rows, [&]<int n>(int r) {
    const float* query = q + static_cast<size_t>(r) * head_dim;
    float* row = s + static_cast<size_t>(r) * score_stride;
    int t = 0;
    if constexpr (n == 1) {
      for (; t + 2 * score_group <= tokens; t += 2 * score_group) {
        fetching.ahead_of(2 * score_group);
        scores_tile<1, 2>(query, head_dim, k + t * head_dim, row + t);
      }
    }
    for (; t < tokens; t += score_group) {
      fetching.ahead_of(n * score_group);
      scores_tile<n, 1>(query, head_dim, k + t * head_dim, row + t);
    }
  });
}

// Scores of one row in base-2 units, as they enter the exponential. Returns their maximum.
inline float scale_row(float* s, float scale, float soft_cap) {
  Vec top = broadcast(minus_infinity);
  if (soft_cap == 0) {
    const Vec factor = broadcast(scale * log2_e);
    for (int i = 0; i < score_stride; i += vec_lanes) {
      const Vec y = mul(load(s + i), factor);
      store(s + i, y);
      top = larger(top, y);
    }
  } else {
    const Vec factor = broadcast(scale / soft_cap);
    const Vec cap = broadcast(soft_cap * log2_e);
    for (int i = 0; i < score_stride; i += vec_lanes) {
      const Vec y = mul(tanh(mul(load(s + i), factor)), cap);
      store(s + i, y);
      top = larger(top, y);
    }
  }
  return lanes_max(top);
}

// Hides what the row doesn't see. Returns the maximum of the rest.
inline float mask_row(float* s, VisibleRange visible) {
  for (int t = 0; t < visible.first; ++t) s[t] = minus_infinity;
  for (int t = visible.end; t < score_stride; ++t) s[t] = minus_infinity;
  Vec top = load(s);
  for (int i = vec_lanes; i < score_stride; i += vec_lanes) top = larger(top, load(s + i));
  return lanes_max(top);
}

inline bool is_hidden(const VisibleRange* visible, int row) {
  return visible != nullptr && visible[row].first >= visible[row].end;
}

// Two sweeps over the rows rather than one: within a sweep no row waits for another one's maximum.
void softmax(float* s, int rows, const VisibleRange* visible, float scale, float soft_cap,
             SoftmaxState state, float* factor) {
  for (int r = 0; r < rows; ++r) {
    factor[r] = 1;
    if (is_hidden(visible, r)) continue;
    float* row = s + r * score_stride;
    float top = scale_row(row, scale, soft_cap);
    if (visible != nullptr && (visible[r].first > 0 || visible[r].end < score_stride)) {
      top = mask_row(row, visible[r]);
    }
    const float before = state.maximum[r];
    if (before > top || before == top) continue;
    factor[r] = exp2_of(before - top);
    state.maximum[r] = top;
    state.sum[r] *= factor[r];
  }
  for (int r = 0; r < rows; ++r) {
    float* row = s + r * score_stride;
    if (is_hidden(visible, r)) {
      for (int t = 0; t < score_stride; ++t) row[t] = 0;
      continue;
    }
    const Vec maximum = broadcast(state.maximum[r]);
    Vec sum[2] = {broadcast(0.0f), broadcast(0.0f)};
    for (int i = 0; i < score_stride; i += 2 * vec_lanes) {
      for (int half = 0; half < 2; ++half) {
        const int t = i + half * vec_lanes;
        const Vec p = exp2(sub(load(row + t), maximum));
        sum[half] = add(sum[half], p);
        store(row + t, p);
      }
    }
    state.sum[r] += lanes_sum(add(sum[0], sum[1]));
  }
}

// Output of `rows` rows and `vecs` vectors of channels.
template <int rows, int vecs>
inline void sum_tile(const float* p, int head_dim, const float* v, int tokens, const float* factor,
                     float* o) {
  Vec sum[rows][vecs];
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < vecs; ++i) sum[r][i] = load(o + r * head_dim + i * vec_lanes);
  }
  if (factor != nullptr) {
    for (int r = 0; r < rows; ++r) {
      const Vec f = broadcast(factor[r]);
      for (int i = 0; i < vecs; ++i) sum[r][i] = mul(sum[r][i], f);
    }
  }
  for (int t = 0; t < tokens; ++t) {
    Vec value[vecs];
    for (int i = 0; i < vecs; ++i) value[i] = load(v + t * head_dim + i * vec_lanes);
    for (int r = 0; r < rows; ++r) {
      const Vec probability = broadcast(p[r * score_stride + t]);
      for (int i = 0; i < vecs; ++i) sum[r][i] = kept(fma(probability, value[i], sum[r][i]));
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < vecs; ++i) store(o + r * head_dim + i * vec_lanes, sum[r][i]);
  }
}

void weighted_sum(const float* p, int rows, int head_dim, const float* v, int tokens,
                  const float* factor, float* o, Upcoming next) {
  Fetching fetching(next, rows * head_dim);
  for_row_groups<sum_rows, false>(rows, [&]<int n>(int r) {
    const float* probabilities = p + static_cast<size_t>(r) * score_stride;
    const float* factors = factor == nullptr ? nullptr : factor + r;
    float* out = o + static_cast<size_t>(r) * head_dim;
    int c = 0;
    if constexpr (n == 1) {
      for (; c + 8 * vec_lanes <= head_dim; c += 8 * vec_lanes) {
        fetching.ahead_of(8 * vec_lanes);
        sum_tile<1, 8>(probabilities, head_dim, v + c, tokens, factors, out + c);
      }
    }
    for (; c + 4 * vec_lanes <= head_dim; c += 4 * vec_lanes) {
      fetching.ahead_of(n * 4 * vec_lanes);
      sum_tile<n, 4>(probabilities, head_dim, v + c, tokens, factors, out + c);
    }
    for (; c + 2 * vec_lanes <= head_dim; c += 2 * vec_lanes) {
      fetching.ahead_of(n * 2 * vec_lanes);
      sum_tile<n, 2>(probabilities, head_dim, v + c, tokens, factors, out + c);
    }
    for (; c < head_dim; c += vec_lanes) {
      fetching.ahead_of(n * vec_lanes);
      sum_tile<n, 1>(probabilities, head_dim, v + c, tokens, factors, out + c);
    }
  });
}

void merge(int rows, int head_dim, SoftmaxState total, float* total_o, SoftmaxState part,
           const float* part_o) {
  for (int r = 0; r < rows; ++r) {
    const float before = total.maximum[r];
    const float added = part.maximum[r];
    if (added == minus_infinity) continue;
    const float now = before > added ? before : added;
    const float keep = exp2_of(before - now);
    const float take = exp2_of(added - now);
    total.maximum[r] = now;
    total.sum[r] = total.sum[r] * keep + part.sum[r] * take;
    float* to = total_o + static_cast<size_t>(r) * head_dim;
    const float* from = part_o + static_cast<size_t>(r) * head_dim;
    for (int c = 0; c < head_dim; c += vec_lanes) {
      const Vec kept = mul(load(to + c), broadcast(keep));
      store(to + c, fma(load(from + c), broadcast(take), kept));
    }
  }
}

void divide(const float* o, float sum, int head_dim, float* out) {
  // A sum of products that vanish can be -0 or 0, depending on masked tokens: + 0 makes it 0.
  for (int c = 0; c < head_dim; c += vec_lanes) {
    store(out + c, add(div(load(o + c), broadcast(sum)), broadcast(0.0f)));
  }
}

bool to_half(const float* x, size_t count, uint16_t* out) {
  bool all_fit = true;
  for (size_t i = 0; i < count; i += vec_lanes) store_half(load(x + i), out + i, all_fit);
  return all_fit;
}

}  // namespace

extern const AttentionKernels attention_kernels;
const AttentionKernels attention_kernels = {scores, softmax, weighted_sum,  merge,
                                            divide, to_half, packed_scores, packed_sum};

}  // namespace kvart::KVART_ISA
