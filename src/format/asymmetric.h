// Asymmetric formats, by bits and by the axis that shares a scale and a minimum: x ~ q * scale +
// minimum.
//
//   m = f16(min), s = f16((max - m) / steps), q = clamp(rne((x - m) / s), 0, steps), steps = 2^bits
//   - 1
//
// q * s is exact in f32 (at most 8 + 11 bits), so decoding rounds once and gives the same bits with
// or without fma. A scale that underflows f16 is 0: all codes 0, the group decodes to m. Ranges
// beyond f16 saturate. With clip < 1 the range is narrowed about its middle first (2 bits: outer
// values cost more than they are worth).
#pragma once

#include "format/kernels.h"
#include "format/quantize.h"
#include "format/unpack.h"
#include "format/values.h"

namespace kvart::KVART_ISA {

constexpr ScaleAndMinimum asymmetric_parameters(float low, float high, float steps, float clip) {
  if (clip != 1.0f) {
    const float middle = 0.5f * low + 0.5f * high;
    const float reach = (0.5f * high - 0.5f * low) * clip;
    low = middle - reach;
    high = middle + reach;
  }
  const uint16_t minimum = f32_to_f16_saturated(low);
  return {f32_to_f16_saturated((high - f16_to_f32(minimum)) / steps), minimum};
}

// What quantizes with these parameters: with a scale of 0 all codes are 0.
constexpr void asymmetric_limits(float scale, float steps, float& divisor, float& high) {
  divisor = scale > 0.0f ? scale : 1.0f;
  high = scale > 0.0f ? steps : 0.0f;
}

// The integer codes of both: stored ones less their middle, so that sums of products stay small.
template <int bits>
struct CentredCodes {
  static constexpr bool has_offset = true;
  static constexpr int centre = 1 << (bits - 1);
  using Codes = PackedCodes<bits, centre>;

  // code * scale + minimum = (code - centre) * scale + (centre * scale + minimum)
  static void add_centre(const float* scales, int n, float* offsets) {
    for (int i = 0; i < n; ++i) offsets[i] += static_cast<float>(centre) * scales[i];
  }
};

// The rule of one group and one value (format/values.h).
template <int bits, ScaleAxis scale_axis, int scale_group, int clip_percent>
struct AsymmetricValues {
  static constexpr ScaleAxis axis = scale_axis;
  static constexpr int group = scale_group;
  static constexpr int code_bits = bits;
  static constexpr int zero = 0;
  static constexpr CodeKind kind = CodeKind::planes;
  static constexpr bool has_minimum = true;
  static constexpr bool range_has_zero = false;
  static constexpr float steps = (1 << bits) - 1;
  static constexpr float least_code = 0.0f;
  static constexpr float most_code = steps;

  static constexpr ScaleAndMinimum parameters(float low, float high) {
    return asymmetric_parameters(low, high, steps, clip_percent / 100.0f);
  }
  static constexpr unsigned code(float x, float scale, float minimum) {
    float divisor = 1.0f;
    float high = 0.0f;
    asymmetric_limits(scale, steps, divisor, high);
    return static_cast<unsigned>(
        static_cast<int>(quantized(x, minimum, divisor, least_code, high)));
  }
  static constexpr float value(unsigned code, float scale, float minimum) {
    return static_cast<float>(static_cast<int>(code)) * scale + minimum;
  }
};

// One scale and minimum per channel over `group` tokens. Parameters: scale [64/group][d], then
// minimum [64/group][d].
template <int bits, int group, int clip_percent = 100>
struct PerChannel : CentredCodes<bits> {
  using Values = AsymmetricValues<bits, ScaleAxis::channel, group, clip_percent>;
  static constexpr ScaleAxis scale_axis = ScaleAxis::channel;
  static constexpr int scale_group = group;
  static constexpr int code_bits = bits;
  static constexpr bool full_precision = false;
  static constexpr int groups = block_tokens / group;
  static constexpr float steps = (1 << bits) - 1;

  static size_t row_bytes(int d) { return packed_row_bytes(bits, d); }
  static size_t parameter_bytes(int d) {
    return sizeof(uint16_t) * 2 * groups * static_cast<size_t>(d);
  }

  static void encode(const float* x, int d, uint8_t* codes, uint16_t* parameters) {
    for (int g = 0; g < groups; ++g) {
      const float* rows = x + static_cast<ptrdiff_t>(g) * group * d;
      encode_group(rows, d, codes + g * group * row_bytes(d), parameters + g * d,
                   parameters + (groups + g) * d);
    }
  }

  static void decode(const uint8_t* codes, const uint16_t* parameters, int d, int first, int count,
                     float* out) {
    float scale[max_head_dim];
    float minimum[max_head_dim];
    int16_t row[max_head_dim];
    int loaded = -1;
    for (int t = first; t < first + count; ++t, out += d) {
      if (t / group != loaded) {
        loaded = t / group;
        f16_row_to_f32(parameters + loaded * d, d, scale);
        f16_row_to_f32(parameters + (groups + loaded) * d, d, minimum);
      }
      codes_to_words<bits>(OneRow{codes + t * row_bytes(d)}, d, 0, row);
      for (int c = 0; c < d; ++c) out[c] = static_cast<float>(row[c]) * scale[c] + minimum[c];
    }
  }

  static void code_parameters(const uint16_t* parameters, int d, int index, float* scales,
                              float* offsets) {
    f16_row_to_f32(parameters + index * d, d, scales);
    f16_row_to_f32(parameters + (groups + index) * d, d, offsets);
    CentredCodes<bits>::add_centre(scales, d, offsets);
  }

 private:
  static void encode_group(const float* x, int d, uint8_t* codes, uint16_t* scales,
                           uint16_t* minima) {
    float low[max_head_dim];
    float high[max_head_dim];
    std::memcpy(low, x, sizeof(float) * d);
    std::memcpy(high, x, sizeof(float) * d);
    for (int t = 1; t < group; ++t) {
      for (int c = 0; c < d; ++c) {
        const float value = x[t * d + c];
        low[c] = value < low[c] ? value : low[c];
        high[c] = value > high[c] ? value : high[c];
      }
    }
    for (int c = 0; c < d; ++c) {
      const ScaleAndMinimum p = Values::parameters(low[c], high[c]);
      scales[c] = p.scale;
      minima[c] = p.minimum;
    }
    f16_row_to_f32(scales, d, high);
    f16_row_to_f32(minima, d, low);
    float divisor[max_head_dim];
    constexpr float zeros[max_head_dim] = {};
    for (int c = 0; c < d; ++c) asymmetric_limits(high[c], steps, divisor[c], high[c]);
    const Quantizer quantizer{low, divisor, zeros, high};
    uint8_t row[max_head_dim];
    for (int t = 0; t < group; ++t) {
      quantize_row<true>(x + t * d, d, quantizer, 0, row);
      pack_row<bits>(row, d, codes + t * row_bytes(d));
    }
  }
};

// One scale and minimum per token over `group` channels (the last group may be shorter).
// Parameters: scale [ceil(d/group)][64 tokens], then minimum [ceil(d/group)][64 tokens].
template <int bits, int group, int clip_percent = 100>
struct PerTokenAsymmetric : CentredCodes<bits> {
  using Values = AsymmetricValues<bits, ScaleAxis::token, group, clip_percent>;
  static constexpr ScaleAxis scale_axis = ScaleAxis::token;
  static constexpr int scale_group = group;
  static constexpr int code_bits = bits;
  static constexpr bool full_precision = false;
  static constexpr float steps = (1 << bits) - 1;

  static int groups(int d) { return (d + group - 1) / group; }
  static size_t row_bytes(int d) { return packed_row_bytes(bits, d); }
  static size_t parameter_bytes(int d) {
    return sizeof(uint16_t) * 2 * block_tokens * static_cast<size_t>(groups(d));
  }

  static void encode(const float* x, int d, uint8_t* codes, uint16_t* parameters) {
    uint8_t row[max_head_dim];
    for (int t = 0; t < block_tokens; ++t, x += d) {
      for (int g = 0; g < groups(d); ++g) {
        const int begin = g * group;
        const int end = begin + group < d ? begin + group : d;
        float low = x[begin];
        float high = x[begin];
        for (int c = begin + 1; c < end; ++c) {
          low = x[c] < low ? x[c] : low;
          high = x[c] > high ? x[c] : high;
        }
        const ScaleAndMinimum p = Values::parameters(low, high);
        parameters[g * block_tokens + t] = p.scale;
        parameters[(groups(d) + g) * block_tokens + t] = p.minimum;
        const float minimum = f16_to_f32(p.minimum);
        constexpr float zero = 0.0f;
        float divisor, limit;
        asymmetric_limits(f16_to_f32(p.scale), steps, divisor, limit);
        const Quantizer quantizer{&minimum, &divisor, &zero, &limit};
        quantize_row<false>(x + begin, end - begin, quantizer, 0, row + begin);
      }
      pack_row<bits>(row, d, codes + t * row_bytes(d));
    }
  }

  static void decode(const uint8_t* codes, const uint16_t* parameters, int d, int first, int count,
                     float* out) {
    int16_t row[max_head_dim];
    for (int t = first; t < first + count; ++t, out += d) {
      codes_to_words<bits>(OneRow{codes + t * row_bytes(d)}, d, 0, row);
      for (int g = 0; g < groups(d); ++g) {
        const float scale = f16_to_f32(parameters[g * block_tokens + t]);
        const float minimum = f16_to_f32(parameters[(groups(d) + g) * block_tokens + t]);
        const int end = (g + 1) * group < d ? (g + 1) * group : d;
        for (int c = g * group; c < end; ++c) out[c] = static_cast<float>(row[c]) * scale + minimum;
      }
    }
  }

  static void code_parameters(const uint16_t* parameters, int d, int index, float* scales,
                              float* offsets) {
    f16_row_to_f32(parameters + index * block_tokens, block_tokens, scales);
    f16_row_to_f32(parameters + (groups(d) + index) * block_tokens, block_tokens, offsets);
    CentredCodes<bits>::add_centre(scales, block_tokens, offsets);
  }
};

}  // namespace kvart::KVART_ISA
