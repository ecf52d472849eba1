// Vec: a register of floats with the few operations that attention needs, for the instruction set
// being compiled. `transposed_sums` reduces four vectors in one fixed tree: four dot products end
// in one store.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
#include <immintrin.h>
#else
#include <bit>

#include "base/half.h"
#endif

namespace kvart::KVART_ISA {

#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)

// Sums of a, b, c and d: ((x0 + x2) + (x1 + x3)) + ((x4 + x6) + (x5 + x7)) each.
inline __m128 transposed_sums_8(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256 sums = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                                    _mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

// Rounds eight floats; those that f16 can't hold become 0 and clear `all_fit`.
inline void store_half_8(__m256 x, uint16_t* out, bool& all_fit) {
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  const __m256 fits = _mm256_cmp_ps(magnitude, _mm256_set1_ps(65520.0f), _CMP_LT_OQ);
  all_fit = all_fit && _mm256_movemask_ps(fits) == 0xff;
  const __m128i half =
      _mm256_cvtps_ph(_mm256_and_ps(x, fits), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), half);
}

#endif

#if defined(KVART_ISA_avx512)

constexpr int vec_lanes = 16;
using Vec = __m512;
// Rows and tokens, rows and vectors of the register tiles: accumulators and operands fill the 32
// registers.
constexpr int score_rows = 5;
constexpr int sum_rows = 5;

inline Vec load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, Vec x) {
  _mm512_storeu_ps(p, x);
}
inline Vec broadcast(float x) {
  return _mm512_set1_ps(x);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline Vec add(Vec a, Vec b) {
  return _mm512_add_ps(a, b);
}
inline Vec sub(Vec a, Vec b) {
  return _mm512_sub_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return _mm512_mul_ps(a, b);
}
inline Vec div(Vec a, Vec b) {
  return _mm512_div_ps(a, b);
}
inline Vec larger(Vec a, Vec b) {
  return _mm512_max_ps(a, b);
}  // b where one is NaN
inline Vec smaller(Vec a, Vec b) {
  return _mm512_min_ps(a, b);
}  // b where one is NaN
inline Vec magnitude(Vec a) {
  return _mm512_abs_ps(a);
}
// Keeps a sum of a loop in one register: without it gcc copies each one back and forth.
inline Vec kept(Vec sum) {
  asm("" : "+v"(sum));
  return sum;
}
// 2^n for n = shifted - 1.5 * 2^23, n in [-127, 127]; 0 for -127.
inline Vec power_of_shifted(Vec shifted) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f800000)));
}
inline float lanes_sum(Vec x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  return _mm_cvtss_f32(transposed_sums_8(half, half, half, half));
}
inline float lanes_max(Vec x) {
  return _mm512_reduce_max_ps(x);
}
inline void store_transposed_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
  const auto fold = [](Vec x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  };
  _mm_storeu_ps(out, transposed_sums_8(fold(a), fold(b), fold(c), fold(d)));
}
inline void store_half(Vec x, uint16_t* out, bool& all_fit) {
  store_half_8(_mm512_castps512_ps256(x), out, all_fit);
  store_half_8(_mm512_extractf32x8_ps(x, 1), out + 8, all_fit);
}

// Packed floats as they are: f16, bf16, and e4m3 less a factor of 256. No stored code is NaN.
inline Vec load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load_bfloats(const uint8_t* p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
inline Vec load_small_e4m3(const uint8_t* p) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtph_ps(
      _mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(int16_t(0xbf80))));
}

#elif defined(KVART_ISA_avx2)

constexpr int vec_lanes = 8;
using Vec = __m256;
constexpr int score_rows = 3;
constexpr int sum_rows = 3;

inline Vec load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x);
}
inline Vec broadcast(float x) {
  return _mm256_set1_ps(x);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline Vec add(Vec a, Vec b) {
  return _mm256_add_ps(a, b);
}
inline Vec sub(Vec a, Vec b) {
  return _mm256_sub_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return _mm256_mul_ps(a, b);
}
inline Vec div(Vec a, Vec b) {
  return _mm256_div_ps(a, b);
}
inline Vec larger(Vec a, Vec b) {
  return _mm256_max_ps(a, b);
}
inline Vec smaller(Vec a, Vec b) {
  return _mm256_min_ps(a, b);
}
inline Vec magnitude(Vec a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
// Keeps a sum of a loop in one register: without it gcc copies each one back and forth.
inline Vec kept(Vec sum) {
  asm("" : "+x"(sum));
  return sum;
}
inline Vec power_of_shifted(Vec shifted) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000)));
}
inline float lanes_sum(Vec x) {
  return _mm_cvtss_f32(transposed_sums_8(x, x, x, x));
}
inline float lanes_max(Vec x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline void store_transposed_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
  _mm_storeu_ps(out, transposed_sums_8(a, b, c, d));
}
inline void store_half(Vec x, uint16_t* out, bool& all_fit) {
  store_half_8(x, out, all_fit);
}

inline Vec load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec load_bfloats(const uint8_t* p) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
inline Vec load_small_e4m3(const uint8_t* p) {
  const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(int16_t(0xbf80))));
}

#else

constexpr int vec_lanes = 4;
struct Vec {
  float x[vec_lanes];
};
constexpr int score_rows = 2;
constexpr int sum_rows = 2;

template <class Function>
inline Vec each_lane(Function f) {
  Vec r;
  for (int i = 0; i < vec_lanes; ++i) r.x[i] = f(i);
  return r;
}
inline Vec load(const float* p) {
  return each_lane([&](int i) { return p[i]; });
}
inline void store(float* p, const Vec& a) {
  for (int i = 0; i < vec_lanes; ++i) p[i] = a.x[i];
}
inline Vec broadcast(float x) {
  return each_lane([&](int) { return x; });
}
// Rounded twice, as baseline x86 has no fused form.
inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return each_lane([&](int i) { return a.x[i] * b.x[i] + c.x[i]; });
}
inline Vec add(const Vec& a, const Vec& b) {
  return each_lane([&](int i) { return a.x[i] + b.x[i]; });
}
inline Vec sub(const Vec& a, const Vec& b) {
  return each_lane([&](int i) { return a.x[i] - b.x[i]; });
}
inline Vec mul(const Vec& a, const Vec& b) {
  return each_lane([&](int i) { return a.x[i] * b.x[i]; });
}
inline Vec div(const Vec& a, const Vec& b) {
  return each_lane([&](int i) { return a.x[i] / b.x[i]; });
}
inline Vec larger(const Vec& a, const Vec& b) {
  return each_lane([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
}
inline Vec smaller(const Vec& a, const Vec& b) {
  return each_lane([&](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; });
}
inline Vec magnitude(const Vec& a) {
  return each_lane([&](int i) { return a.x[i] < 0 ? -a.x[i] : a.x[i]; });
}
inline const Vec& kept(const Vec& sum) {
  return sum;
}
inline Vec power_of_shifted(const Vec& shifted) {
  return each_lane([&](int i) {
    return std::bit_cast<float>((std::bit_cast<uint32_t>(shifted.x[i]) << 23) + 0x3f800000u);
  });
}
inline float lanes_sum(const Vec& a) {
  return (a.x[0] + a.x[2]) + (a.x[1] + a.x[3]);
}
inline float lanes_max(const Vec& a) {
  float m = a.x[0];
  for (int i = 1; i < vec_lanes; ++i) m = m > a.x[i] ? m : a.x[i];
  return m;
}
inline void store_transposed_sums(float* out, const Vec& a, const Vec& b, const Vec& c,
                                  const Vec& d) {
  out[0] = lanes_sum(a);
  out[1] = lanes_sum(b);
  out[2] = lanes_sum(c);
  out[3] = lanes_sum(d);
}
inline void store_half(const Vec& a, uint16_t* out, bool& all_fit) {
  for (int i = 0; i < vec_lanes; ++i) {
    const float magnitude = a.x[i] < 0 ? -a.x[i] : a.x[i];
    const bool fits = magnitude < 65520.0f;  // false for NaN
    all_fit = all_fit && fits;
    out[i] = fits ? f32_to_f16(a.x[i]) : uint16_t{0};
  }
}

#endif

}  // namespace kvart::KVART_ISA
