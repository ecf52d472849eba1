// int4_g32: symmetric 4-bit codes -8..7 (stored + 8), one f16 scale per token and 32 channels (the
// last group may be shorter): s = f16(extreme / -8), extreme = the value of largest magnitude with
// its sign, the positive one of two equals; q = clamp(rne(x / s), -8, 7). Parameters:
// [ceil(d/32)][64 tokens].
#pragma once

#include "format/kernels.h"
#include "format/quantize.h"
#include "format/unpack.h"
#include "format/values.h"

namespace kvart::KVART_ISA {

// The rule of one group and one value (format/values.h).
struct Int4G32Values {
  static constexpr ScaleAxis axis = ScaleAxis::token;
  static constexpr int group = 32;
  static constexpr int code_bits = 4;
  static constexpr int zero = 8;
  static constexpr CodeKind kind = CodeKind::planes;
  static constexpr bool has_minimum = false;
  static constexpr bool range_has_zero = true;
  static constexpr float least_code = -8.0f;
  static constexpr float most_code = 7.0f;

  static constexpr ScaleAndMinimum parameters(float low, float high) {
    const uint16_t stored = f32_to_f16_saturated((high >= -low ? high : low) / -8.0f);
    return {f16_to_f32(stored) == 0.0f ? uint16_t{0} : stored, 0};
  }
  static constexpr unsigned code(float x, float scale, float /*minimum*/) {
    const bool zeros = scale == 0.0f;
    const float code = quantized(x, 0.0f, zeros ? 1.0f : scale, zeros ? 0.0f : least_code,
                                 zeros ? 0.0f : most_code);
    return static_cast<unsigned>(static_cast<int>(code) + zero);
  }
  static constexpr float value(unsigned code, float scale, float /*minimum*/) {
    return static_cast<float>(static_cast<int>(code) - zero) * scale;
  }
};

struct int4_g32 {
  using Values = Int4G32Values;
  static constexpr int version = 1;
  static constexpr const char* description = "4 bits per token over 32 channels, symmetric";
  static constexpr int code_bits = 4;
  static constexpr bool full_precision = false;
  static constexpr int group = Values::group;

  static int groups(int d) { return (d + group - 1) / group; }
  static size_t row_bytes(int d) { return packed_row_bytes(4, d); }
  static size_t parameter_bytes(int d) {
    return sizeof(uint16_t) * block_tokens * static_cast<size_t>(groups(d));
  }

  static void encode(const float* x, int d, uint8_t* codes, uint16_t* parameters) {
    uint8_t row[max_head_dim];
    for (int t = 0; t < block_tokens; ++t, x += d) {
      for (int g = 0; g < groups(d); ++g) {
        const int end = (g + 1) * group < d ? (g + 1) * group : d;
        parameters[g * block_tokens + t] =
            encode_group(x + g * group, end - g * group, row + g * group);
      }
      pack_row<4>(row, d, codes + t * row_bytes(d));
    }
  }

  static void decode(const uint8_t* codes, const uint16_t* parameters, int d, int first, int count,
                     float* out) {
    int16_t row[max_head_dim];
    for (int t = first; t < first + count; ++t, out += d) {
      codes_to_words<4>(OneRow{codes + t * row_bytes(d)}, d, 8, row);
      for (int g = 0; g < groups(d); ++g) {
        const float scale = f16_to_f32(parameters[g * block_tokens + t]);
        const int end = (g + 1) * group < d ? (g + 1) * group : d;
        for (int c = g * group; c < end; ++c) out[c] = static_cast<float>(row[c]) * scale;
      }
    }
  }

  static constexpr ScaleAxis scale_axis = ScaleAxis::token;
  static constexpr int scale_group = group;
  static constexpr bool has_offset = false;
  using Codes = PackedCodes<4, 8>;

  static void code_parameters(const uint16_t* parameters, int /*d*/, int index, float* scales,
                              float* /*offsets*/) {
    f16_row_to_f32(parameters + index * block_tokens, block_tokens, scales);
  }

 private:
  static uint16_t encode_group(const float* x, int n, uint8_t* codes) {
    float low = 0.0f;
    float high = 0.0f;
    for (int c = 0; c < n; ++c) {
      low = x[c] < low ? x[c] : low;
      high = x[c] > high ? x[c] : high;
    }
    const uint16_t stored = Values::parameters(low, high).scale;
    const float scale = f16_to_f32(stored);
    const float zero = 0.0f;
    const float divisor = scale != 0.0f ? scale : 1.0f;
    const float least = scale != 0.0f ? -8.0f : 0.0f;
    const float most = scale != 0.0f ? 7.0f : 0.0f;
    quantize_row<false>(x, n, {&zero, &divisor, &least, &most}, 8, codes);
    return stored;
  }
};

}  // namespace kvart::KVART_ISA
