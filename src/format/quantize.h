// Values to codes, a row at a time: the same bits on every instruction set, as each step rounds as
// IEEE says and nothing is fused.
#pragma once

#include "format/rows.h"

namespace kvart::KVART_ISA {

// What is stored with the codes of one group of values, both f16.
struct ScaleAndMinimum {
  uint16_t scale;
  uint16_t minimum;
};

// The code of one value: rne(clamp((x - minimum) / divisor, low, high)), NaN as `low`.
constexpr float quantized(float x, float minimum, float divisor, float low, float high) {
  const float y = (x - minimum) / divisor;
  const float above = y > low ? y : low;  // NaN too
  return round_even(above < high ? above : high);
}

// How values become codes: as quantized() has it. Arrays of one figure for each channel, or of one
// for all.
struct Quantizer {
  const float* minimum;
  const float* divisor;
  const float* low;
  const float* high;
};

#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
// The codes of eight values as 32-bit integers; i: the first's place in the quantizer's arrays.
template <bool per_channel>
inline __m256i quantized_8(const float* x, const Quantizer& q, int i) {
  const auto figure = [i](const float* from) {
    return per_channel ? _mm256_loadu_ps(from + i) : _mm256_broadcast_ss(from);
  };
  const __m256 y =
      _mm256_div_ps(_mm256_sub_ps(_mm256_loadu_ps(x), figure(q.minimum)), figure(q.divisor));
  return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(y, figure(q.low)), figure(q.high)));
}

// The low bytes of 16 integers, each of which fits one with or without a sign.
inline void store_low_bytes(__m256i a, __m256i b, uint8_t* out) {
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packus_epi32(_mm256_and_si256(a, low), _mm256_and_si256(b, low)), 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(out),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
#endif

// out[c] = code of x[c], + added. n: a multiple of 16.
template <bool per_channel>
inline void quantize_row(const float* x, int n, const Quantizer& q, int added, uint8_t* out) {
  int c = 0;
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
  const __m256i add = _mm256_set1_epi32(added);
  for (; c + 16 <= n; c += 16) {
    store_low_bytes(_mm256_add_epi32(quantized_8<per_channel>(x + c, q, c), add),
                    _mm256_add_epi32(quantized_8<per_channel>(x + c + 8, q, c + 8), add), out + c);
  }
#endif
  for (; c < n; ++c) {
    const int i = per_channel ? c : 0;
    const float code = quantized(x[c], q.minimum[i], q.divisor[i], q.low[i], q.high[i]);
    out[c] = static_cast<uint8_t>(static_cast<int>(code) + added);
  }
}

}  // namespace kvart::KVART_ISA
