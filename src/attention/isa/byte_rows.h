// Rows of floats as integers of two signed bytes, and sums of such bytes: what kernels on codes as
// bytes have in common.
#pragma once

#include "attention/isa/integer_rows.h"
#include "format/unpack.h"

namespace kvart::KVART_ISA {

using Bytes = __m512i;
using Sums = __m512i;
constexpr int bytes_of_vector = 64;

// Keeps a sum of a loop in one register: without it gcc copies each one back and forth.
inline Sums kept(Sums sum) {
  asm("" : "+v"(sum));
  return sum;
}

// sum[i] + a[4i] * b[4i] + ... + a[4i + 3] * b[4i + 3]; a unsigned, b signed
inline Sums add_products(Sums sum, Bytes a, Bytes b) {
  return kept(_mm512_dpbusd_epi32(sum, a, b));
}

// Less the products of `zero` with a row's integers, n high bytes and n low ones `low` bytes after
// them, in lanes.
inline Sums correction(const int8_t* row, int n, int low, int zero) {
  const Bytes zeros = _mm512_set1_epi8(static_cast<char>(zero));
  Sums sum = _mm512_setzero_si512();
  for (int c = 0; c < n; c += bytes_of_vector) {
    sum = add_products(sum, zeros, load_bytes(row + c, n - c));
  }
  sum = _mm512_slli_epi32(sum, 8);
  for (int c = 0; c < n; c += bytes_of_vector) {
    sum = add_products(sum, zeros, load_bytes(row + low + c, n - c));
  }
  return _mm512_sub_epi32(_mm512_setzero_si512(), sum);
}

struct ByteRow {
  // The n high bytes at row, the low ones `length` bytes after them.
  static void store(const float* y, Vec factor, int n, int length, int16_t* row) {
    auto* high = reinterpret_cast<int8_t*>(row);
    store_bytes_of(y, factor, n, high, high + length);
  }

  static void store_bytes_of(const float* y, Vec factor, int n, int8_t* high, int8_t* low) {
    int i = 0;
    for (; i + bytes_of_vector <= n; i += bytes_of_vector) {
      store_64(y + i, factor, high + i, low + i);
    }
    for (; i < n; i += vec_lanes) {
      const __m512i integers = _mm512_cvtps_epi32(mul(load(y + i), factor));
      const __m512i upper =
          _mm512_srai_epi32(_mm512_add_epi32(integers, _mm512_set1_epi32(128)), 8);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(upper));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(integers));
    }
  }

 private:
  // Narrows registers with registers, which go through 128-bit lanes, and sorts the lanes last.
  static void store_64(const float* y, Vec factor, int8_t* high, int8_t* low) {
    const auto integers = [&](int i) {
      return _mm512_cvtps_epi32(mul(load(y + i * vec_lanes), factor));
    };
    const __m512i a = _mm512_packs_epi32(integers(0), integers(1));
    const __m512i b = _mm512_packs_epi32(integers(2), integers(3));
    const auto upper = [](__m512i words) {
      return _mm512_srai_epi16(_mm512_add_epi16(words, _mm512_set1_epi16(128)), 8);
    };
    const __m512i low_byte = _mm512_set1_epi16(0xff);
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    _mm512_storeu_si512(high,
                        _mm512_permutexvar_epi32(order, _mm512_packs_epi16(upper(a), upper(b))));
    _mm512_storeu_si512(
        low, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(_mm512_and_si512(a, low_byte),
                                                                 _mm512_and_si512(b, low_byte))));
  }
};

// Registers of four: dwords 4 * l + j of x[0] to x[3] are lane l of x[j].
inline void transpose_dwords(__m512i x[4]) {
  const __m512i low[2] = {_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpacklo_epi32(x[2], x[3])};
  const __m512i high[2] = {_mm512_unpackhi_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[2], x[3])};
  x[0] = _mm512_unpacklo_epi64(low[0], low[1]);
  x[1] = _mm512_unpackhi_epi64(low[0], low[1]);
  x[2] = _mm512_unpacklo_epi64(high[0], high[1]);
  x[3] = _mm512_unpackhi_epi64(high[0], high[1]);
}

}  // namespace kvart::KVART_ISA
