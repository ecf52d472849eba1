// The vectors of the model's kernels with AVX-512 and VNNI: one 512-bit register each.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "model/ops/isa/unroll.h"

namespace kvart::ops::KVART_ISA {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct U8x64 {
  __m512i v;
};

inline F32x16 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void store(float* p, F32x16 a) {
  _mm512_storeu_ps(p, a.v);
}
inline F32x16 splat(float value) {
  return {_mm512_set1_ps(value)};
}
inline I32x16 splat(int32_t value) {
  return {_mm512_set1_epi32(value)};
}

inline F32x16 add(F32x16 a, F32x16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline F32x16 div(F32x16 a, F32x16 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
// a·b + c, rounded once.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline F32x16 clamp(F32x16 a, float low, float high) {
  return {_mm512_min_ps(_mm512_max_ps(a.v, _mm512_set1_ps(low)), _mm512_set1_ps(high))};
}
// 1 0 3 2 5 4 …
inline F32x16 swap_pairs(F32x16 a) {
  return {_mm512_permute_ps(a.v, 0xb1)};
}

inline I32x16 add(I32x16 a, I32x16 b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
inline I32x16 sub(I32x16 a, I32x16 b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}
template <int bits>
inline I32x16 shift_left(I32x16 a) {
  return {_mm512_slli_epi32(a.v, bits)};
}
inline I32x16 max(I32x16 a, I32x16 b) {
  return {_mm512_max_epi32(a.v, b.v)};
}
inline I32x16 abs_bits(F32x16 a) {
  return {_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff))};
}
inline F32x16 from_bits(I32x16 a) {
  return {_mm512_castsi512_ps(a.v)};
}
inline F32x16 to_f32(I32x16 a) {
  return {_mm512_cvtepi32_ps(a.v)};
}
inline I32x16 round_to_i32(F32x16 a) {
  return {_mm512_cvtps_epi32(a.v)};
}
inline int32_t sum_of_lanes(I32x16 a) {
  return _mm512_reduce_add_epi32(a.v);
}
inline int32_t max_of_lanes(I32x16 a) {
  return _mm512_reduce_max_epi32(a.v);
}
// Precondition: every lane fits in 8 bits.
inline void store_i8(int8_t* p, I32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

inline __m128i load_128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline __m256i load_256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

inline F32x16 load_f16(const void* p) {
  return {_mm512_cvtph_ps(load_256(p))};
}
inline F32x16 load_bf16(const void* p) {
  return from_bits({_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(p)), 16)});
}
inline F32x16 load_u8(const uint8_t* p) {
  return to_f32({_mm512_cvtepu8_epi32(load_128(p))});
}
inline F32x16 load_i8(const uint8_t* p) {
  return to_f32({_mm512_cvtepi8_epi32(load_128(p))});
}

inline U8x64 load_line(const uint8_t* p) {
  return {_mm512_loadu_si512(p)};
}
inline void store_line(uint8_t* p, U8x64 a) {
  _mm512_storeu_si512(p, a.v);
}
inline U8x64 mask_bytes(U8x64 a, uint8_t mask) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi8(static_cast<char>(mask)))};
}
inline U8x64 either(U8x64 a, U8x64 b) {
  return {_mm512_or_si512(a.v, b.v)};
}
// Shifts 16-bit lanes; what crosses from one byte to the next is for the caller to mask. Left if
// bits > 0, right if bits < 0.
template <int bits>
inline U8x64 shift_bytes(U8x64 a) {
  if constexpr (bits > 0) return {_mm512_slli_epi16(a.v, bits)};
  if constexpr (bits < 0) return {_mm512_srli_epi16(a.v, -bits)};
  return a;
}

// 8 sums hide the latency of vpdpbusd (5) on two ports nearly, and leave registers to unpack in.
inline constexpr int rows_at_once = 8;
// vpdpbusd adds in 32 bits and takes all 8 bits of a code.
inline constexpr bool split_bytes = false;

inline __m512i broadcast_quad(const int8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return _mm512_set1_epi32(quad);
}

// products[r] = Σ over `quads` quads from `first` on of codes · x[r].
template <int bits, int first, int quads, int rows, class Source>
KVART_INLINE void dot_products(const Source& source, const int8_t* const (&x)[rows],
                               I32x16 (&products)[rows]) {
  unroll<rows>([&](auto r) KVART_INLINE_LAMBDA { products[r] = splat(int32_t{0}); });
  unroll<quads>([&](auto q) KVART_INLINE_LAMBDA {
    constexpr int quad = first + decltype(q)::value;
    const U8x64 line = source.codes(constant<quad>{});
    unroll<rows>([&](auto r) KVART_INLINE_LAMBDA {
      products[r] = {_mm512_dpbusd_epi32(products[r].v, line.v, broadcast_quad(x[r] + 4 * quad))};
    });
  });
}

}  // namespace kvart::ops::KVART_ISA
