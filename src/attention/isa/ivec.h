// IVec: a register of 16-bit integers that are multiplied in pairs into 32-bit sums, for the
// instruction set being compiled. The sums are exact, so their order is free.
#pragma once

#include "attention/isa/vec.h"

namespace kvart::KVART_ISA {

// Words of a register; their products give as many 32-bit sums as Vec has lanes.
constexpr int ivec_words = 2 * vec_lanes;

#if defined(KVART_ISA_avx2)

using IVec = __m256i;
inline IVec no_sum() {
  return _mm256_setzero_si256();
}
inline IVec load_words(const int16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
// p[0], p[1], p[0], p[1] ...
inline IVec broadcast_pair(const int16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return _mm256_set1_epi32(pair);
}
// sum[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1]
// Written out, since gcc else copies the sums of a loop from register to register.
inline IVec add_products(IVec sum, IVec a, IVec b) {
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(a, b)));
  return sum;
}
inline Vec to_float(IVec x) {
  return _mm256_cvtepi32_ps(x);
}
// The nearest integers, ties to even, of |x| <= 32767.
inline void store_rounded(Vec x, int16_t* to) {
  const __m256i whole = _mm256_cvtps_epi32(x);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}

#else

struct IVec {
  int16_t words[ivec_words];
};
struct Sums {
  int32_t x[vec_lanes];
};
inline Sums no_sum() {
  return {};
}
inline IVec load_words(const int16_t* p) {
  IVec r;
  for (int i = 0; i < ivec_words; ++i) r.words[i] = p[i];
  return r;
}
// p[0], p[1], p[0], p[1] ...
inline IVec broadcast_pair(const int16_t* p) {
  IVec r;
  for (int i = 0; i < ivec_words; ++i) r.words[i] = p[i % 2];
  return r;
}
// sum[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1]
inline Sums add_products(const Sums& sum, const IVec& a, const IVec& b) {
  Sums r;
  for (int i = 0; i < vec_lanes; ++i) {
    r.x[i] = sum.x[i] + a.words[2 * i] * b.words[2 * i] + a.words[2 * i + 1] * b.words[2 * i + 1];
  }
  return r;
}
inline Vec to_float(const Sums& x) {
  return each_lane([&](int i) { return static_cast<float>(x.x[i]); });
}
// The nearest integers, ties to even, of |x| <= 32767.
inline void store_rounded(const Vec& x, int16_t* to) {
  for (int i = 0; i < vec_lanes; ++i) {
    const float whole = (x.x[i] + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23
    to[i] = static_cast<int16_t>(whole >= -32768.0f && whole <= 32767.0f ? whole : -32768.0f);
  }
}

#endif

// The sums of all lanes of a, b, c and d, as floats.
#if defined(KVART_ISA_avx2)
using Sums = IVec;
inline __m128 integer_sums(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  const __m256i sums =
      _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  return _mm_cvtepi32_ps(
      _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
}
// out[i] = sum i * factor + addend
inline void store_integer_sums(float* out, float factor, float addend, Sums a, Sums b, Sums c,
                               Sums d) {
  _mm_storeu_ps(out,
                _mm_fmadd_ps(integer_sums(a, b, c, d), _mm_set1_ps(factor), _mm_set1_ps(addend)));
}
#else
inline float integer_sum(const Sums& a) {
  int32_t sum = 0;
  for (const int32_t x : a.x) sum += x;
  return static_cast<float>(sum);
}
// out[i] = sum i * factor + addend
inline void store_integer_sums(float* out, float factor, float addend, const Sums& a, const Sums& b,
                               const Sums& c, const Sums& d) {
  out[0] = integer_sum(a) * factor + addend;
  out[1] = integer_sum(b) * factor + addend;
  out[2] = integer_sum(c) * factor + addend;
  out[3] = integer_sum(d) * factor + addend;
}
#endif

}  // namespace kvart::KVART_ISA
