// The vectors of the model's kernels in plain C++: the same 16 lanes, the same roundings.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "model/ops/isa/unroll.h"

namespace kvart::ops::KVART_ISA {

struct F32x16 {
  float v[16];
};
struct I32x16 {
  int32_t v[16];
};
struct U8x64 {
  uint8_t v[64];
};

template <class Vector, class F>
KVART_INLINE Vector each(const F& f) {
  Vector result;
  for (int i = 0; i < static_cast<int>(std::size(result.v)); ++i) result.v[i] = f(i);
  return result;
}

inline F32x16 load(const float* p) {
  return each<F32x16>([&](int i) { return p[i]; });
}
inline void store(float* p, const F32x16& a) {
  std::memcpy(p, a.v, sizeof a.v);
}
inline F32x16 splat(float value) {
  return each<F32x16>([&](int) { return value; });
}
inline I32x16 splat(int32_t value) {
  return each<I32x16>([&](int) { return value; });
}

inline F32x16 add(const F32x16& a, const F32x16& b) {
  return each<F32x16>([&](int i) { return a.v[i] + b.v[i]; });
}
inline F32x16 mul(const F32x16& a, const F32x16& b) {
  return each<F32x16>([&](int i) { return a.v[i] * b.v[i]; });
}
inline F32x16 div(const F32x16& a, const F32x16& b) {
  return each<F32x16>([&](int i) { return a.v[i] / b.v[i]; });
}
// a·b + c, rounded once.
inline F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  return each<F32x16>([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline F32x16 clamp(const F32x16& a, float low, float high) {
  return each<F32x16>([&](int i) {
    const float raised = a.v[i] > low ? a.v[i] : low;  // NaN becomes low, as with vmaxps
    return raised < high ? raised : high;
  });
}
// 1 0 3 2 5 4 …
inline F32x16 swap_pairs(const F32x16& a) {
  return each<F32x16>([&](int i) { return a.v[i ^ 1]; });
}

inline I32x16 add(const I32x16& a, const I32x16& b) {
  return each<I32x16>([&](int i) { return a.v[i] + b.v[i]; });
}
inline I32x16 sub(const I32x16& a, const I32x16& b) {
  return each<I32x16>([&](int i) { return a.v[i] - b.v[i]; });
}
template <int bits>
inline I32x16 shift_left(const I32x16& a) {
  return each<I32x16>([&](int i) { return a.v[i] * (1 << bits); });
}
inline I32x16 max(const I32x16& a, const I32x16& b) {
  return each<I32x16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline I32x16 abs_bits(const F32x16& a) {
  return each<I32x16>([&](int i) { return std::bit_cast<int32_t>(a.v[i]) & 0x7fffffff; });
}
inline F32x16 from_bits(const I32x16& a) {
  return each<F32x16>([&](int i) { return std::bit_cast<float>(a.v[i]); });
}
inline F32x16 to_f32(const I32x16& a) {
  return each<F32x16>([&](int i) { return static_cast<float>(a.v[i]); });
}
inline I32x16 round_to_i32(const F32x16& a) {
  return each<I32x16>([&](int i) { return static_cast<int32_t>(std::lrintf(a.v[i])); });
}
inline int32_t sum_of_lanes(const I32x16& a) {
  int32_t sum = 0;
  for (const int32_t lane : a.v) sum += lane;
  return sum;
}
inline int32_t max_of_lanes(const I32x16& a) {
  int32_t result = a.v[0];
  for (const int32_t lane : a.v) result = lane > result ? lane : result;
  return result;
}
// Precondition: every lane fits in 8 bits.
inline void store_i8(int8_t* p, const I32x16& a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}

inline uint16_t load_u16(const void* p, int index) {
  uint16_t value;
  std::memcpy(&value, static_cast<const uint8_t*>(p) + 2 * index, sizeof value);
  return value;
}
inline F32x16 load_f16(const void* p) {
  return each<F32x16>([&](int i) { return f16_to_f32(load_u16(p, i)); });
}
inline F32x16 load_bf16(const void* p) {
  return each<F32x16>([&](int i) { return bf16_to_f32(load_u16(p, i)); });
}
inline F32x16 load_u8(const uint8_t* p) {
  return each<F32x16>([&](int i) { return static_cast<float>(p[i]); });
}
inline F32x16 load_i8(const uint8_t* p) {
  return each<F32x16>([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}

inline U8x64 load_line(const uint8_t* p) {
  return each<U8x64>([&](int i) { return p[i]; });
}
inline void store_line(uint8_t* p, const U8x64& a) {
  std::memcpy(p, a.v, sizeof a.v);
}
inline U8x64 mask_bytes(const U8x64& a, uint8_t mask) {
  return each<U8x64>([&](int i) { return static_cast<uint8_t>(a.v[i] & mask); });
}
inline U8x64 either(const U8x64& a, const U8x64& b) {
  return each<U8x64>([&](int i) { return static_cast<uint8_t>(a.v[i] | b.v[i]); });
}
// Left if bits > 0, right if bits < 0. (The vector forms shift 16-bit lanes: callers mask what
// crosses from one byte to the next there.)
template <int bits>
inline U8x64 shift_bytes(const U8x64& a) {
  constexpr int left = bits > 0 ? bits : 0;
  constexpr int right = bits < 0 ? -bits : 0;
  return each<U8x64>([&](int i) { return static_cast<uint8_t>((a.v[i] << left) >> right); });
}

inline constexpr int rows_at_once = 1;
inline constexpr bool split_bytes = false;

// products[r] = Σ over `quads` quads from `first` on of codes · x[r].
template <int bits, int first, int quads, int rows, class Source>
KVART_INLINE void dot_products(const Source& source, const int8_t* const (&x)[rows],
                               I32x16 (&products)[rows]) {
  for (I32x16& product : products) product = splat(int32_t{0});
  unroll<quads>([&](auto q) KVART_INLINE_LAMBDA {
    constexpr int quad = first + decltype(q)::value;
    const U8x64 line = source.codes(constant<quad>{});
    for (int r = 0; r < rows; ++r) {
      for (int byte = 0; byte < 64; ++byte) {
        products[r].v[byte / 4] += line.v[byte] * x[r][4 * quad + byte % 4];
      }
    }
  });
}

}  // namespace kvart::ops::KVART_ISA
