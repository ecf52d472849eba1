// Row operations that the formats are written in: rounding, half conversion of rows, bit planes.
// Compiled for each instruction set in a namespace of its own; the results are the same bits
// everywhere.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "kvart/format.h"

#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
#include <immintrin.h>
#endif

namespace kvart::KVART_ISA {

inline constexpr int max_head_dim = 256;

// Nearest integer, ties to even, for |x| < 2^22; plain arithmetic, so that loops over it become
// vector code.
constexpr float round_even(float x) {
  return (x + 12582912.0f) - 12582912.0f;
}

// f16 -> f32 for n values. in: [n], out: [n].
inline void f16_row_to_f32(const uint16_t* in, int n, float* out) {
  int i = 0;
#if defined(KVART_ISA_avx512)
  for (; i + 16 <= n; i += 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i));
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(half));
  }
#endif
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
#endif
  for (; i < n; ++i) out[i] = f16_to_f32(in[i]);
}

// f32 -> f16, round to nearest even, overflow to ±65504. in: [n], out: [n].
inline void f32_row_to_f16_saturated(const float* in, int n, uint16_t* out) {
  int i = 0;
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
  const __m256 top = _mm256_set1_ps(f16_max);
  const __m256 bottom = _mm256_set1_ps(-f16_max);
  for (; i + 8 <= n; i += 8) {
    const __m256 x = _mm256_max_ps(_mm256_min_ps(_mm256_loadu_ps(in + i), top), bottom);
    const __m128i half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
#endif
  for (; i < n; ++i) out[i] = f32_to_f16_saturated(in[i]);
}

// Bit planes of a row. bits = sum of planes of 4, 2 and 1 bits, largest first; 8 bits is a plane of
// bytes. A plane of b bits over d values has d*b/8 bytes: byte c = sum over j of value[c + j*d*b/8]
// << (b*j).
template <int plane_bits>
inline void pack_plane(const uint8_t* codes, int d, int shift, uint8_t* out) {
  const int bytes = d * plane_bits / 8;
  constexpr int per_byte = 8 / plane_bits;
  constexpr unsigned mask = (1u << plane_bits) - 1;
  for (int c = 0; c < bytes; ++c) {
    unsigned byte = 0;
    for (int j = 0; j < per_byte; ++j) {
      byte |= ((static_cast<unsigned>(codes[c + j * bytes]) >> shift) & mask) << (plane_bits * j);
    }
    out[c] = static_cast<uint8_t>(byte);
  }
}

constexpr size_t packed_row_bytes(int bits, int d) {
  return static_cast<size_t>(d) * bits / 8;
}

// The lowest bits of a code lie in the last plane: 6 = 4 + 2 stores code >> 2 in the 4-bit plane,
// code & 3 in the next.
template <int bits>
inline void pack_row(const uint8_t* codes, int d, uint8_t* out) {
  if constexpr (bits == 8) {
    std::memcpy(out, codes, static_cast<size_t>(d));
  } else {
    int left = bits;
    if constexpr ((bits & 4) != 0) {
      left -= 4;
      pack_plane<4>(codes, d, left, out);
      out += packed_row_bytes(4, d);
    }
    if constexpr ((bits & 2) != 0) {
      left -= 2;
      pack_plane<2>(codes, d, left, out);
      out += packed_row_bytes(2, d);
    }
    if constexpr ((bits & 1) != 0) pack_plane<1>(codes, d, 0, out);
  }
}

}  // namespace kvart::KVART_ISA
