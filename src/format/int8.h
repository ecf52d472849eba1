// int8: symmetric 8-bit codes -127..127, one f16 scale per token: s = f16(amax / 127), q = rne(x /
// s). A row of zeros has scale 0 and decodes to 0.
#pragma once

#include "format/kernels.h"
#include "format/quantize.h"
#include "format/unpack.h"
#include "format/values.h"

namespace kvart::KVART_ISA {

// The largest magnitude of a row. x: [d].
inline float row_amax(const float* x, int d) {
  float amax = 0.0f;
  int c = 0;
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 lanes = _mm256_setzero_ps();
  for (; c + 8 <= d; c += 8) {
    // NaN in the first operand gives the second one: it is passed over, as below.
    lanes = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + c)), lanes);
  }
  float largest[8];
  _mm256_storeu_ps(largest, lanes);
  for (const float lane : largest) amax = lane > amax ? lane : amax;
#endif
  for (; c < d; ++c) {
    const float magnitude = x[c] < 0.0f ? -x[c] : x[c];
    amax = magnitude > amax ? magnitude : amax;
  }
  return amax;
}

// The rule of one row and one value (format/values.h).
struct Int8Values {
  static constexpr ScaleAxis axis = ScaleAxis::token;
  static constexpr int group = max_head_dim;
  static constexpr int code_bits = 8;
  static constexpr int zero = 0;
  static constexpr CodeKind kind = CodeKind::signed_bytes;
  static constexpr bool has_minimum = false;
  static constexpr bool range_has_zero = true;
  static constexpr float least_code = -127.0f;
  static constexpr float most_code = 127.0f;

  static constexpr uint16_t scale_of(float amax) { return f32_to_f16_saturated(amax / 127.0f); }
  static constexpr ScaleAndMinimum parameters(float low, float high) {
    return {scale_of(-low > high ? -low : high), 0};
  }
  static constexpr unsigned code(float x, float scale, float /*minimum*/) {
    const float high = scale > 0.0f ? most_code : 0.0f;
    const float code = quantized(x, 0.0f, scale > 0.0f ? scale : 1.0f, -high, high);
    return static_cast<unsigned>(static_cast<int>(code)) & 0xffu;
  }
  static constexpr float value(unsigned code, float scale, float /*minimum*/) {
    return static_cast<float>(static_cast<int8_t>(code)) * scale;
  }
};

struct int8 {
  using Values = Int8Values;
  static constexpr int version = 1;
  static constexpr const char* description = "8 bits per token, symmetric";
  static constexpr int code_bits = 8;
  static constexpr bool full_precision = false;

  static size_t row_bytes(int d) { return static_cast<size_t>(d); }
  static size_t parameter_bytes(int /*d*/) { return sizeof(uint16_t) * block_tokens; }

  static void encode(const float* x, int d, uint8_t* codes, uint16_t* parameters) {
    for (int t = 0; t < block_tokens; ++t, x += d, codes += d) {
      parameters[t] = Values::scale_of(row_amax(x, d));
      const float scale = f16_to_f32(parameters[t]);
      const float zero = 0.0f;
      const float divisor = scale > 0.0f ? scale : 1.0f;
      const float high = scale > 0.0f ? 127.0f : 0.0f;
      const float low = -high;
      quantize_row<false>(x, d, {&zero, &divisor, &low, &high}, 0, codes);
    }
  }

  static void decode(const uint8_t* codes, const uint16_t* parameters, int d, int first, int count,
                     float* out) {
    for (int t = first; t < first + count; ++t, out += d) {
      const float scale = f16_to_f32(parameters[t]);
      const auto* row = reinterpret_cast<const int8_t*>(codes) + static_cast<ptrdiff_t>(t) * d;
      for (int c = 0; c < d; ++c) out[c] = static_cast<float>(row[c]) * scale;
    }
  }

  static constexpr ScaleAxis scale_axis = ScaleAxis::token;
  static constexpr int scale_group = max_head_dim;
  static constexpr bool has_offset = false;
  using Codes = SignedBytes;

  static void code_parameters(const uint16_t* parameters, int /*d*/, int /*index*/, float* scales,
                              float* /*offsets*/) {
    f16_row_to_f32(parameters, block_tokens, scales);
  }
};

}  // namespace kvart::KVART_ISA
