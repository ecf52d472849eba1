// The vectors of the model's kernels with AVX2: pairs of 256-bit registers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "model/ops/isa/unroll.h"

namespace kvart::ops::KVART_ISA {

struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};
struct U8x64 {
  __m256i lo, hi;
};

inline F32x16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline F32x16 splat(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}
inline I32x16 splat(int32_t value) {
  return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
}

inline F32x16 add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32x16 div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
// a·b + c, rounded once.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32x16 clamp(F32x16 a, float low, float high) {
  const __m256 l = _mm256_set1_ps(low);
  const __m256 h = _mm256_set1_ps(high);
  return {_mm256_min_ps(_mm256_max_ps(a.lo, l), h), _mm256_min_ps(_mm256_max_ps(a.hi, l), h)};
}
// 1 0 3 2 5 4 …
inline F32x16 swap_pairs(F32x16 a) {
  return {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
}

inline I32x16 add(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline I32x16 sub(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
template <int bits>
inline I32x16 shift_left(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, bits), _mm256_slli_epi32(a.hi, bits)};
}
inline I32x16 max(I32x16 a, I32x16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
inline I32x16 abs_bits(F32x16 a) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  return {_mm256_and_si256(_mm256_castps_si256(a.lo), mask),
          _mm256_and_si256(_mm256_castps_si256(a.hi), mask)};
}
inline F32x16 from_bits(I32x16 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
inline F32x16 to_f32(I32x16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
inline I32x16 round_to_i32(F32x16 a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
inline int32_t sum_of_lanes(I32x16 a) {
  const __m256i both = _mm256_add_epi32(a.lo, a.hi);
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}
inline int32_t max_of_lanes(I32x16 a) {
  const __m256i both = _mm256_max_epi32(a.lo, a.hi);
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
// Precondition: every lane fits in 8 bits.
inline void store_i8(int8_t* p, I32x16 a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline __m128i load_128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline __m128i load_64(const void* p) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(p));
}

inline F32x16 load_f16(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return {_mm256_cvtph_ps(load_128(bytes)), _mm256_cvtph_ps(load_128(bytes + 16))};
}
inline F32x16 load_bf16(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return from_bits({_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(bytes)), 16),
                    _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(bytes + 16)), 16)});
}
inline F32x16 load_u8(const uint8_t* p) {
  return to_f32({_mm256_cvtepu8_epi32(load_64(p)), _mm256_cvtepu8_epi32(load_64(p + 8))});
}
inline F32x16 load_i8(const uint8_t* p) {
  return to_f32({_mm256_cvtepi8_epi32(load_64(p)), _mm256_cvtepi8_epi32(load_64(p + 8))});
}

inline U8x64 load_line(const uint8_t* p) {
  const auto* line = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(line), _mm256_loadu_si256(line + 1)};
}
inline void store_line(uint8_t* p, U8x64 a) {
  auto* line = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(line, a.lo);
  _mm256_storeu_si256(line + 1, a.hi);
}
inline U8x64 mask_bytes(U8x64 a, uint8_t mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
}
inline U8x64 either(U8x64 a, U8x64 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
// Shifts 16-bit lanes; what crosses from one byte to the next is for the caller to mask. Left if
// bits > 0, right if bits < 0.
template <int bits>
inline U8x64 shift_bytes(U8x64 a) {
  if constexpr (bits > 0) return {_mm256_slli_epi16(a.lo, bits), _mm256_slli_epi16(a.hi, bits)};
  if constexpr (bits < 0) return {_mm256_srli_epi16(a.lo, -bits), _mm256_srli_epi16(a.hi, -bits)};
  return a;
}

// 4 rows x 2 registers of 16-bit sums are 8 of the 16 registers: 12 leave none for the compiler.
inline constexpr int rows_at_once = 4;
// maddubs adds two products of an unsigned and a signed byte in 16 bits, where 8-bit codes would
// saturate: they go as two halves of 4 bits.
inline constexpr bool split_bytes = true;

// Holds the compiler to the order of additions that is written: its own order has more sums alive
// than there are registers.
KVART_INLINE void keep_in_registers(I32x16& a) {
  asm("" : "+x"(a.lo), "+x"(a.hi));
}

// The same pointer, unknown to the compiler: what it loaded before it loads again, where it would
// otherwise keep more values than there are registers, and spill them.
KVART_INLINE const int8_t* hidden(const int8_t* p) {
  asm("" : "+r"(p));
  return p;
}

inline __m256i broadcast_quad(const int8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return _mm256_set1_epi32(quad);
}
// 32 sums of two products, 16 bits each.
inline I32x16 multiply_quad(U8x64 line, __m256i activations) {
  return {_mm256_maddubs_epi16(line.lo, activations), _mm256_maddubs_epi16(line.hi, activations)};
}
inline I32x16 add_i16(I32x16 a, I32x16 b) {
  return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
inline I32x16 add_pairs(I32x16 a, __m256i weights) {
  return {_mm256_madd_epi16(a.lo, weights), _mm256_madd_epi16(a.hi, weights)};
}

// products[r] += weight · Σ over `quads` quads from `first` on of codes · x[r], for codes(q) the
// line of quad q with codes below 2^bits.
template <int bits, int first, int quads, int weight, int rows, class Codes>
KVART_INLINE void add_products(const Codes& codes, const int8_t* const (&x)[rows],
                               I32x16 (&products)[rows]) {
  // So many maddubs fit in a sum of 16 bits: 15·127·2·8 and 31·127·2·4 are below 2^15.
  constexpr int room = bits == 4 ? 8 : 4;
  constexpr int chunk = room < quads ? room : quads;
  const __m256i weights = _mm256_set1_epi16(weight);
  unroll<quads / chunk>([&](auto c) KVART_INLINE_LAMBDA {
    I32x16 sums[rows];
    unroll<chunk>([&](auto q) KVART_INLINE_LAMBDA {
      constexpr int quad = first + decltype(c)::value * chunk + decltype(q)::value;
      const U8x64 line = codes(constant<quad>{});
      unroll<rows>([&](auto r) KVART_INLINE_LAMBDA {
        const I32x16 sum = multiply_quad(line, broadcast_quad(x[r] + 4 * quad));
        sums[r] = decltype(q)::value == 0 ? sum : add_i16(sums[r], sum);
        keep_in_registers(sums[r]);
      });
    });
    unroll<rows>([&](auto r) KVART_INLINE_LAMBDA {
      products[r] = add(products[r], add_pairs(sums[r], weights));
    });
  });
}

// The same for codes of 6 bits, of which only two maddubs fit in 16 bits (63·127·2·2): the sums
// live so shortly that the rows take turns.
template <int first, int quads, int rows, class Source>
KVART_INLINE void add_products_6(const Source& source, const int8_t* const (&x)[rows],
                                 I32x16 (&products)[rows]) {
  const __m256i ones = _mm256_set1_epi16(1);
  unroll<quads / 2>([&](auto pair) KVART_INLINE_LAMBDA {
    constexpr int quad = first + 2 * decltype(pair)::value;
    const U8x64 line = source.codes(constant<quad>{});
    const U8x64 next_line = source.codes(constant<quad + 1>{});
    unroll<rows>([&](auto r) KVART_INLINE_LAMBDA {
      const I32x16 sum = add_i16(multiply_quad(line, broadcast_quad(x[r] + 4 * quad)),
                                 multiply_quad(next_line, broadcast_quad(x[r] + 4 * (quad + 1))));
      products[r] = add(products[r], add_pairs(sum, ones));
      keep_in_registers(products[r]);
    });
  });
}

// products[r] = Σ over the quads of codes · x[r].
template <int bits, int first, int quads, int rows, class Source>
KVART_INLINE void dot_products(const Source& source, const int8_t* const (&x)[rows],
                               I32x16 (&products)[rows]) {
  unroll<rows>([&](auto r) KVART_INLINE_LAMBDA { products[r] = splat(int32_t{0}); });
  if constexpr (bits == 8) {
    add_products<4, first, quads, 1>([&](auto q) KVART_INLINE_LAMBDA { return source.low(q); }, x,
                                     products);
    const int8_t* again[rows];
    unroll<rows>([&](auto r) KVART_INLINE_LAMBDA { again[r] = hidden(x[r]); });
    add_products<4, first, quads, 16>([&](auto q) KVART_INLINE_LAMBDA { return source.high(q); },
                                      again, products);
  } else if constexpr (bits == 6) {
    add_products_6<first, quads>(source, x, products);
  } else {
    add_products<bits, first, quads, 1>([&](auto q) KVART_INLINE_LAMBDA { return source.codes(q); },
                                        x, products);
  }
}

}  // namespace kvart::ops::KVART_ISA
