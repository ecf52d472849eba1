// fp8_e4m3: OCP e4m3 codes (sign, 4 exponent bits, 3 mantissa bits, bias 7, largest 448, no
// infinities, NaN 0x7f), one f16 scale per token: s = f16(amax / 448), code = e4m3(x / s), round to
// nearest even, saturating. NaN is never encoded. A row of zeros has scale 0 and decodes to 0.
#pragma once

#include "format/int8.h"
#include "format/quantize.h"
#include "format/rows.h"
#include "format/values.h"

namespace kvart::KVART_ISA {

constexpr uint8_t f32_to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const float unclamped = std::bit_cast<float>(bits & 0x7fffffffu);
  const float magnitude = unclamped < 448.0f ? unclamped : 448.0f;  // NaN too
  const uint32_t exact = std::bit_cast<uint32_t>(magnitude);
  const uint32_t normal = ((exact + 0x7ffffu + ((exact >> 20) & 1u)) >> 20) - (120u << 3);
  const auto subnormal = static_cast<uint32_t>(static_cast<int>(round_even(magnitude * 512.0f)));
  return static_cast<uint8_t>(
      sign | (magnitude < 0.015625f ? subnormal : normal));  // below 2^-6: subnormal
}

#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
// f32_to_e4m3 of eight values.
inline __m256i f32_to_e4m3_8(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256 magnitude =
      _mm256_min_ps(_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff))),
                    _mm256_set1_ps(448.0f));
  const __m256i exact = _mm256_castps_si256(magnitude);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(exact, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(exact, _mm256_set1_epi32(0x7ffff)), odd);
  const __m256i normal =
      _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
  const __m256i subnormal = _mm256_cvtps_epi32(_mm256_mul_ps(magnitude, _mm256_set1_ps(512.0f)));
  const __m256 is_subnormal = _mm256_cmp_ps(magnitude, _mm256_set1_ps(0.015625f), _CMP_LT_OQ);
  const __m256i code = _mm256_blendv_epi8(normal, subnormal, _mm256_castps_si256(is_subnormal));
  return _mm256_or_si256(code, sign);
}
#endif

// codes[c] = x[c] / scale. d: a multiple of 16.
inline void f32_row_to_e4m3(const float* x, int d, float scale, uint8_t* codes) {
  int c = 0;
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
  const __m256 divisor = _mm256_set1_ps(scale);
  for (; c + 16 <= d; c += 16) {
    store_low_bytes(f32_to_e4m3_8(_mm256_div_ps(_mm256_loadu_ps(x + c), divisor)),
                    f32_to_e4m3_8(_mm256_div_ps(_mm256_loadu_ps(x + c + 8), divisor)), codes + c);
  }
#endif
  for (; c < d; ++c) codes[c] = f32_to_e4m3(x[c] / scale);
}

constexpr float e4m3_to_f32(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float subnormal = static_cast<float>(static_cast<int>(magnitude)) * 0.001953125f;  // 2^-9
  const float finite = magnitude < 8 ? subnormal : normal;
  const float value = magnitude == 0x7fu ? std::bit_cast<float>(0x7fc00000u) : finite;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) |
                              (static_cast<uint32_t>(code & 0x80u) << 24));
}

#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
// 16 codes as f16 of 2^-8 times their value: the exponent's field is one bit longer, and its bias 8
// more. NaN stays NaN.
inline __m256i e4m3_to_small_f16(const uint8_t* codes) {
  const __m256i words =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256i value =
      _mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(int16_t(0xbf80)));
  const __m256i magnitude = _mm256_and_si256(value, _mm256_set1_epi16(0x3f80));
  const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
  return _mm256_or_si256(value, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
}
#endif

#if defined(KVART_ISA_avx512)
// The same of 32 codes.
inline __m512i e4m3_to_small_f16_32(const uint8_t* codes) {
  const __m512i words =
      _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  const __m512i value =
      _mm512_and_si512(_mm512_slli_epi16(words, 7), _mm512_set1_epi16(int16_t(0xbf80)));
  const __m512i top = _mm512_set1_epi16(0x3f80);
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(value, top), top);
  return _mm512_or_si512(value, _mm512_maskz_mov_epi16(is_nan, _mm512_set1_epi16(0x7e00)));
}
#endif

// out[c] = value c * scale. d: a multiple of 16. The scale is that of a row, an f16: 256 times it,
// and either product with a code's value, are exact or rounded once.
inline void e4m3_row_to_f32(const uint8_t* codes, int d, float scale, float* out) {
  int c = 0;
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
#if defined(KVART_ISA_avx512)
  const __m512 factor_16 = _mm512_set1_ps(scale * 256.0f);
  for (; c + 32 <= d; c += 32) {
    const __m512i half = e4m3_to_small_f16_32(codes + c);
    const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
    const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
    _mm512_storeu_ps(out + c, _mm512_mul_ps(low, factor_16));
    _mm512_storeu_ps(out + c + 16, _mm512_mul_ps(high, factor_16));
  }
#endif
  const __m256 factor = _mm256_set1_ps(scale * 256.0f);
  for (; c + 16 <= d; c += 16) {
    const __m256i half = e4m3_to_small_f16(codes + c);
    const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
    _mm256_storeu_ps(out + c, _mm256_mul_ps(low, factor));
    _mm256_storeu_ps(out + c + 8, _mm256_mul_ps(high, factor));
  }
#endif
  for (; c < d; ++c) out[c] = e4m3_to_f32(codes[c]) * scale;
}

// The rule of one row and one value (format/values.h).
struct Fp8E4m3Values {
  static constexpr ScaleAxis axis = ScaleAxis::token;
  static constexpr int group = max_head_dim;
  static constexpr int code_bits = 8;
  static constexpr CodeKind kind = CodeKind::e4m3;
  static constexpr bool has_minimum = false;
  static constexpr bool range_has_zero = true;

  static constexpr uint16_t scale_of(float amax) { return f32_to_f16_saturated(amax / 448.0f); }
  static constexpr ScaleAndMinimum parameters(float low, float high) {
    return {scale_of(-low > high ? -low : high), 0};
  }
  static constexpr unsigned code(float x, float scale, float /*minimum*/) {
    return scale > 0.0f ? f32_to_e4m3(x / scale) : 0u;
  }
  static constexpr float value(unsigned code, float scale, float /*minimum*/) {
    return e4m3_to_f32(static_cast<uint8_t>(code)) * scale;
  }
};

struct fp8_e4m3 {
  using Values = Fp8E4m3Values;
  static constexpr int version = 1;
  static constexpr const char* description = "e4m3 floats, one scale per token";
  static constexpr int code_bits = 8;
  static constexpr bool full_precision = false;
  static constexpr Packing packing = Packing::e4m3;

  static size_t row_bytes(int d) { return static_cast<size_t>(d); }
  static size_t parameter_bytes(int /*d*/) { return sizeof(uint16_t) * block_tokens; }

  static void encode(const float* x, int d, uint8_t* codes, uint16_t* parameters) {
    for (int t = 0; t < block_tokens; ++t, x += d, codes += d) {
      parameters[t] = Values::scale_of(row_amax(x, d));
      const float scale = f16_to_f32(parameters[t]);
      if (scale > 0.0f) {
        f32_row_to_e4m3(x, d, scale, codes);
      } else {
        std::memset(codes, 0, static_cast<size_t>(d));
      }
    }
  }

  static void decode(const uint8_t* codes, const uint16_t* parameters, int d, int first, int count,
                     float* out) {
    for (int t = first; t < first + count; ++t, out += d) {
      const float scale = f16_to_f32(parameters[t]);
      e4m3_row_to_f32(codes + static_cast<ptrdiff_t>(t) * d, d, scale, out);
    }
  }

  static void token_scales(const uint16_t* parameters, float* scales) {
    f16_row_to_f32(parameters, block_tokens, scales);
  }
};

}  // namespace kvart::KVART_ISA
