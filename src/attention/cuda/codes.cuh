// Codes of a format's rows and the parameters of its groups, value by value, from the rules in the
// formats' own files (format/values.h).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "format/values.h"
#include "kvart_format_headers.inc"

namespace kvart::cuda {

__device__ inline float half_float(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

// The code of channel c of a row of d codes in planes (format/rows.h).
template <int bits>
__device__ inline unsigned code_at(const uint8_t* row, int d, int c) {
  if constexpr (bits == 16) return reinterpret_cast<const uint16_t*>(row)[c];
  if constexpr (bits == 8) return row[c];
  unsigned code = 0;
  if constexpr (bits < 8 && (bits & 4) != 0) {
    const int part = d / 2;
    code = (row[c % part] >> (4 * (c / part))) & 15u;
    row += part;
  }
  if constexpr (bits < 8 && (bits & 2) != 0) {
    const int part = d / 4;
    code = (code << 2) | ((row[c % part] >> (2 * (c / part))) & 3u);
    row += part;
  }
  if constexpr (bits < 8 && (bits & 1) != 0) {
    const int part = d / 8;
    code = (code << 1) | ((row[c % part] >> (c / part)) & 1u);
  }
  return code;
}

// How many groups of values the 64 tokens of one side have.
template <class Values>
__device__ inline int group_count(int d) {
  if (Values::axis == ScaleAxis::none) return 0;
  if (Values::axis == ScaleAxis::channel) return block_tokens / Values::group * d;
  return (d + Values::group - 1) / Values::group * block_tokens;
}

// The group of a value: its place among the stored scales, and among the minima behind them.
template <class Values>
__device__ inline int group_of(int d, int token, int c) {
  if (Values::axis == ScaleAxis::channel) return token / Values::group * d + c;
  return c / Values::group * block_tokens + token;
}

// The value of token t's channel c.
template <class Format>
__device__ inline float value_at(const uint8_t* codes, const uint16_t* parameters, int d, int t,
                                 int c) {
  using Values = typename Format::Values;
  const int row_bytes = d * Values::code_bits / 8;
  const unsigned code = code_at<Values::code_bits>(codes + t * row_bytes, d, c);
  float scale = 0.0f;
  float minimum = 0.0f;
  if constexpr (Values::axis != ScaleAxis::none) {
    const int group = group_of<Values>(d, t, c);
    scale = half_float(parameters[group]);
    if (Values::has_minimum) minimum = half_float(parameters[group_count<Values>(d) + group]);
  }
  return Values::value(code, scale, minimum);
}

// The same for the format with that index in formats().
__device__ inline float value_at(int format, const uint8_t* codes, const uint16_t* parameters,
                                 int d, int t, int c) {
  enum Index {
#define KVART_FORMAT(name) index_##name,
#include "kvart_formats.inc"
#undef KVART_FORMAT
  };
  switch (format) {
#define KVART_FORMAT(name) \
  case index_##name:       \
    return value_at<isa_cuda::name>(codes, parameters, d, t, c);
#include "kvart_formats.inc"
#undef KVART_FORMAT
    default:
      return __int_as_float(0x7fc00000);
  }
}

}  // namespace kvart::cuda
