// What is done to rows of activations between the matrix products, and the table of kernels.
#include <cmath>
#include <cstring>

#include "model/ops/isa/kernels.h"
#include "model/ops/isa/vec.h"
#include "model/ops/packed_layout.h"

namespace kvart::ops::KVART_ISA {
namespace {

// Calls body(offset, count) for every 16 of `count` elements; a short end goes through padded
// copies of the operands inside load_some and store_some, never through a scalar loop: an element's
// result must not depend on its place.
template <class Body>
KVART_INLINE void for_each_16(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) body(i, 16);
  if (i < count) body(i, static_cast<int>(count - i));
}
KVART_INLINE F32x16 load_some(const float* p, int count) {
  if (count == 16) return load(p);
  float padded[16] = {};
  std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(float));
  return load(padded);
}
KVART_INLINE void store_some(float* p, F32x16 values, int count) {
  if (count == 16) return store(p, values);
  float padded[16];
  store(padded, values);
  std::memcpy(p, padded, static_cast<size_t>(count) * sizeof(float));
}

// Below this a group of activations counts as zeros: 127 / maximum would overflow.
constexpr float least_maximum = 0x1p-100f;

void quantize_group(const float* x, int8_t* codes, RowGroup* group) {
  const F32x16 first = load(x);
  const F32x16 last = load(x + 16);
  // Magnitudes compare as integers, NaN above Inf above all numbers.
  const int32_t maximum_bits = max_of_lanes(max(abs_bits(first), abs_bits(last)));
  float maximum;
  std::memcpy(&maximum, &maximum_bits, sizeof maximum);
  const bool finite = maximum_bits < 0x7f800000;
  if (!finite || maximum < least_maximum) {
    *group = {finite ? 0.0f : NAN, 0, {0, 0}};
    std::memset(codes, 0, group_columns);
    return;
  }
  const F32x16 inverse = splat(127.0f / maximum);
  const I32x16 first_codes = round_to_i32(mul(first, inverse));
  const I32x16 last_codes = round_to_i32(mul(last, inverse));
  store_i8(codes, first_codes);
  store_i8(codes + 16, last_codes);
  const int32_t sums[2] = {sum_of_lanes(first_codes), sum_of_lanes(last_codes)};
  *group = {maximum / 127.0f, sums[0] + sums[1], {sums[0], sums[1]}};
}

void quantize_row(const float* x, int64_t columns, int8_t* codes, RowGroup* groups) {
  int64_t i = 0;
  for (; i + group_columns <= columns; i += group_columns) {
    quantize_group(x + i, codes + i, groups++);
  }
  if (i == columns) return;
  float padded[group_columns] = {};
  std::memcpy(padded, x + i, static_cast<size_t>(columns - i) * sizeof(float));
  quantize_group(padded, codes + i, groups);
}

void rms_norm_row(const float* x, const float* weight, float eps, int64_t count, float* out) {
  F32x16 squares = splat(0.0f);
  for_each_16(count, [&](int64_t i, int n) KVART_INLINE_LAMBDA {
    const F32x16 value = load_some(x + i, n);
    squares = fma(value, value, squares);
  });
  float lanes[16];
  store(lanes, squares);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  const F32x16 factor = splat(1.0f / std::sqrt(lanes[0] / static_cast<float>(count) + eps));
  for_each_16(count, [&](int64_t i, int n) KVART_INLINE_LAMBDA {
    store_some(out + i, mul(mul(load_some(x + i, n), factor), load_some(weight + i, n)), n);
  });
}

// e^x by 2^n·e^r, |r| <= ln 2 / 2, and the Taylor polynomial of degree 7 (remainder below 6e-9);
// x is first clamped to where the result is a normal number.
KVART_INLINE F32x16 exponential(F32x16 x) {
  x = clamp(x, -87.3f, 88.3f);
  const I32x16 n = round_to_i32(mul(x, splat(1.44269504f)));
  const F32x16 n_f32 = to_f32(n);
  // ln 2 in two parts, the first with zeros at its end so that n times it is exact.
  F32x16 r = fma(n_f32, splat(-0x1.62e4p-1f), x);
  r = fma(n_f32, splat(-0x1.7f7d1cp-20f), r);
  F32x16 sum = splat(1.0f / 5040);
  for (const float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = fma(sum, r, splat(coefficient));
  }
  return mul(sum, from_bits(shift_left<23>(add(n, splat(int32_t{127})))));
}

void silu_mul(float* gate, const float* up, int64_t count) {
  const F32x16 one = splat(1.0f);
  for_each_16(count, [&](int64_t i, int n) KVART_INLINE_LAMBDA {
    const F32x16 x = load_some(gate + i, n);
    const F32x16 silu = div(x, add(one, exponential(mul(x, splat(-1.0f)))));
    store_some(gate + i, mul(silu, load_some(up + i, n)), n);
  });
}

// 0.7978845608 = sqrt(2 / pi), so that 1 / (1 + e^-2u) is (1 + tanh u) / 2.
void gelu_tanh_mul(float* gate, const float* up, int64_t count) {
  const F32x16 one = splat(1.0f);
  for_each_16(count, [&](int64_t i, int n) KVART_INLINE_LAMBDA {
    const F32x16 x = load_some(gate + i, n);
    const F32x16 cubic = fma(mul(mul(x, x), splat(0.044715f)), x, x);
    const F32x16 minus_2u = mul(cubic, splat(-2.0f * 0.7978845608f));
    const F32x16 gelu = div(x, add(one, exponential(minus_2u)));
    store_some(gate + i, mul(gelu, load_some(up + i, n)), n);
  });
}

// tanh y = 2 / (1 + e^-2y) - 1; + 0·x, so that a NaN or an Inf isn't hidden.
void soft_cap(float cap, float* x, int64_t count) {
  const F32x16 one = splat(1.0f);
  const F32x16 minus_two_over_cap = splat(-2.0f / cap);
  for_each_16(count, [&](int64_t i, int n) KVART_INLINE_LAMBDA {
    const F32x16 value = load_some(x + i, n);
    const F32x16 power = exponential(mul(value, minus_two_over_cap));
    const F32x16 tanh = fma(splat(2.0f), div(one, add(one, power)), splat(-1.0f));
    store_some(x + i, fma(tanh, splat(cap), mul(value, splat(0.0f))), n);
  });
}

void scale_rows(float factor, float* x, int64_t count) {
  for_each_16(count, [&](int64_t i, int n) KVART_INLINE_LAMBDA {
    store_some(x + i, mul(load_some(x + i, n), splat(factor)), n);
  });
}

void add_rows(float* x, const float* y, int64_t count) {
  for_each_16(count, [&](int64_t i, int n) KVART_INLINE_LAMBDA {
    store_some(x + i, add(load_some(x + i, n), load_some(y + i, n)), n);
  });
}

void rope_halves(float* x, const float* cos, const float* sin, int64_t pairs) {
  for_each_16(pairs, [&](int64_t i, int n) KVART_INLINE_LAMBDA {
    const F32x16 first = load_some(x + i, n);
    const F32x16 last = load_some(x + pairs + i, n);
    const F32x16 c = load_some(cos + i, n);
    const F32x16 s = load_some(sin + i, n);
    store_some(x + i, fma(first, c, mul(last, mul(s, splat(-1.0f)))), n);
    store_some(x + pairs + i, fma(last, c, mul(first, s)), n);
  });
}

void rope_adjacent(float* x, const float* cos, const float* sin, int64_t pairs) {
  for_each_16(2 * pairs, [&](int64_t i, int n) KVART_INLINE_LAMBDA {
    const F32x16 value = load_some(x + i, n);
    const F32x16 turned = mul(swap_pairs(value), load_some(sin + i, n));
    store_some(x + i, fma(value, load_some(cos + i, n), turned), n);
  });
}

}  // namespace

OpsKernels kernels() {
  return {matmul_kernel, quantize_row, rms_norm_row, silu_mul,    gelu_tanh_mul,
          soft_cap,      scale_rows,   add_rows,     rope_halves, rope_adjacent};
}

}  // namespace kvart::ops::KVART_ISA
