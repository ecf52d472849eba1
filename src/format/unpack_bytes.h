// Packed codes as bytes of code + zero, for AVX-512: rows of codes, or those of four tokens side by
// side. Heads of 64, 128 and 256 channels are unpacked in registers; what a loop over parts of a
// plane does for the others costs several times as much, since one part's masked stores are read
// back for the next plane.
#pragma once

#if defined(KVART_ISA_avx512)

#include <type_traits>

#include "format/kernels.h"
#include "format/rows.h"

namespace kvart::KVART_ISA {

// `count` bytes (at most 64), and zeros.
inline __m512i load_bytes(const void* p, int count) {
  return _mm512_maskz_loadu_epi8(count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1, p);
}
inline void store_bytes(uint8_t* p, __m512i x, int count) {
  _mm512_mask_storeu_epi8(p, count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1, x);
}

// The planes of a code of `bits` bits (rows.h): bits of the larger, then of the smaller one, which
// hold the code's lowest bits. 0: there is none.
constexpr int large_plane(int bits) {
  return bits == 8 ? 8 : bits >= 4 ? 4 : 2;
}
constexpr int small_plane(int bits) {
  return bits - large_plane(bits);
}

// Shifts words to the right, or to the left by -right.
template <int right>
inline __m512i shifted(__m512i x) {
  if constexpr (right > 0) {
    return _mm512_srli_epi16(x, right);
  } else if constexpr (right < 0) {
    return _mm512_slli_epi16(x, -right);
  } else {
    return x;
  }
}

// How far to shift each word of a register in which n bytes of part `first` are followed by n of
// the next part and so on, to have each part in the lowest bits.
template <int plane_bits, int n, int first>
struct PartShifts {
  alignas(64) uint16_t words[32];
  constexpr PartShifts() : words() {
    for (int i = 0; i < 32; ++i) words[i] = static_cast<uint16_t>(plane_bits * (first + 2 * i / n));
  }
};

template <int plane_bits, int n, int first>
inline __m512i parts_shifted(__m512i x) {
  static constexpr PartShifts<plane_bits, n, first> shifts;
  return _mm512_srlv_epi16(x, _mm512_load_si512(shifts.words));
}

// Codes from their planes' parts, that of the larger one shifted left by the smaller one's bits.
// Bits beyond those of a part are ignored.
template <int bits>
inline __m512i joined(__m512i large, __m512i small) {
  constexpr int low = small_plane(bits);
  if constexpr (bits == 8) return large;
  __m512i code = large;
  if constexpr (low > 0) {
    const __m512i of_large = _mm512_set1_epi8(static_cast<char>(0xff << low));
    code = _mm512_ternarylogic_epi32(of_large, large, small, 0xca);  // a ? b : c, bit by bit
  }
  return _mm512_and_si512(code, _mm512_set1_epi8((1 << bits) - 1));
}

// n bytes, repeated. n: 8, 16 or 32.
template <int n>
inline __m512i repeated(const uint8_t* p) {
  if constexpr (n == 32) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  } else if constexpr (n == 16) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  } else {
    static_assert(n == 8);
    int64_t bytes = 0;
    std::memcpy(&bytes, p, sizeof(bytes));
    return _mm512_set1_epi64(bytes);
  }
}

// A plane's parts of channels [64 * v, 64 * v + 64) of a row of d codes, shifted left by `up`.
template <int plane_bits, int d, int v, int up>
inline __m512i plane_of_row(const uint8_t* plane) {
  constexpr int n = d * plane_bits / 8;  // bytes of a part
  constexpr int part = 64 * v / n;
  if constexpr (n >= 64) {
    static_assert(n % 64 == 0);
    return shifted<plane_bits * part - up>(_mm512_loadu_si512(plane + 64 * v % n));
  } else {
    return shifted<-up>(parts_shifted<plane_bits, n, part>(repeated<n>(plane)));
  }
}

// The codes of one row. d: 64, 128 or 256.
template <int bits, int d, int v = 0>
inline void registers_of_row(const uint8_t* row, uint8_t* out) {
  if constexpr (64 * v < d) {
    constexpr int low = small_plane(bits);
    const __m512i large = plane_of_row<large_plane(bits), d, v, low>(row);
    __m512i small = large;
    if constexpr (low > 0) {
      small = plane_of_row<low, d, v, 0>(row + packed_row_bytes(large_plane(bits), d));
    }
    _mm512_storeu_si512(out + 64 * v, joined<bits>(large, small));
    registers_of_row<bits, d, v + 1>(row, out);
  }
}

// Four times 16 bytes side by side: byte 4 * i + r of the result is byte i of bytes[r].
inline __m512i side_by_side(const __m128i bytes[4]) {
  // Dwords of the same bytes together, then these bytes.
  const __m512i by_fours = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i by_bytes = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
  __m512i x = _mm512_castsi128_si512(bytes[0]);
  x = _mm512_inserti32x4(x, bytes[1], 1);
  x = _mm512_inserti32x4(x, bytes[2], 2);
  x = _mm512_inserti32x4(x, bytes[3], 3);
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(by_fours, x), by_bytes);
}

inline __m512i side_by_side_16(const uint8_t* rows, size_t stride) {
  __m128i bytes[4];
  for (int r = 0; r < 4; ++r) {
    bytes[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + r * stride));
  }
  return side_by_side(bytes);
}

// 64 bytes of four rows, into four registers.
inline void side_by_side_64(const uint8_t* rows, size_t stride, __m512i out[4]) {
  // Unpacking goes through the 128-bit lanes: dwords 0, 4, 8 and 12 into the first lane and so on
  // leave the results in order.
  const __m512i by_fours = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  __m512i row[4];
  for (int r = 0; r < 4; ++r) {
    row[r] = _mm512_permutexvar_epi32(by_fours, _mm512_loadu_si512(rows + r * stride));
  }
  const __m512i low[2] = {_mm512_unpacklo_epi8(row[0], row[1]),
                          _mm512_unpacklo_epi8(row[2], row[3])};
  const __m512i high[2] = {_mm512_unpackhi_epi8(row[0], row[1]),
                           _mm512_unpackhi_epi8(row[2], row[3])};
  out[0] = _mm512_unpacklo_epi16(low[0], low[1]);
  out[1] = _mm512_unpackhi_epi16(low[0], low[1]);
  out[2] = _mm512_unpacklo_epi16(high[0], high[1]);
  out[3] = _mm512_unpackhi_epi16(high[0], high[1]);
}

// n bytes of four rows side by side; eight bytes are taken twice, to fill a register.
template <int n>
struct SideBySide {
  __m512i x[n < 16 ? 1 : n / 16];

  SideBySide(const uint8_t* rows, size_t stride) {
    if constexpr (n % 64 == 0) {
      for (int i = 0; i < n / 64; ++i) side_by_side_64(rows + 64 * i, stride, x + 4 * i);
    } else if constexpr (n % 16 == 0) {
      for (int i = 0; i < n / 16; ++i) x[i] = side_by_side_16(rows + 16 * i, stride);
    } else {
      static_assert(n == 8);
      __m128i bytes[4];
      for (int r = 0; r < 4; ++r) {
        int64_t eight = 0;
        std::memcpy(&eight, rows + r * stride, sizeof(eight));
        bytes[r] = _mm_set1_epi64x(eight);
      }
      x[0] = side_by_side(bytes);
    }
  }
};

// A plane's parts of channels [16 * w, 16 * w + 16), shifted left by `up`. n: bytes of a part.
template <int plane_bits, int n, int w, int up>
inline __m512i plane_of_columns(const SideBySide<n>& plane) {
  constexpr int part = 16 * w / n;
  if constexpr (n >= 16) {
    return shifted<plane_bits * part - up>(plane.x[16 * w % n / 16]);
  } else {
    static_assert(up == 0);
    return parts_shifted<plane_bits, 4 * n, part>(plane.x[0]);
  }
}

template <int bits, int d, class Large, class Small, int w = 0>
inline void store_columns(const Large& large, const Small& small, uint8_t* out) {
  if constexpr (16 * w < d) {
    constexpr int low = small_plane(bits);
    const __m512i upper =
        plane_of_columns<large_plane(bits), d * large_plane(bits) / 8, w, low>(large);
    __m512i lower = upper;
    if constexpr (low > 0) lower = plane_of_columns<low, d * low / 8, w, 0>(small);
    _mm512_storeu_si512(out + 64 * w, joined<bits>(upper, lower));
    store_columns<bits, d, Large, Small, w + 1>(large, small, out);
  }
}

// The codes of four rows side by side. d: 64, 128 or 256.
template <int bits, int d>
inline void registers_of_columns(const uint8_t* rows, size_t stride, uint8_t* out) {
  const SideBySide<d * large_plane(bits) / 8> large(rows, stride);
  if constexpr (small_plane(bits) > 0) {
    const size_t before = packed_row_bytes(large_plane(bits), d);
    const SideBySide<d * small_plane(bits) / 8> small(rows + before, stride);
    store_columns<bits, d>(large, small, out);
  } else {
    store_columns<bits, d>(large, large, out);
  }
}

// One plane of a row into bytes: its bits go to `shift` and above. The first plane sets bytes,
// later ones add to them.
template <int plane_bits, int shift, bool first, int j = 0>
inline void plane_to_bytes(const uint8_t* plane, int d, uint8_t* out) {
  if constexpr (plane_bits * j < 8) {
    const int n = d * plane_bits / 8;
    for (int c = 0; c < n; c += 64) {
      const int count = n - c < 64 ? n - c : 64;
      __m512i part = shifted<plane_bits * j>(load_bytes(plane + c, count));
      part = _mm512_and_si512(part, _mm512_set1_epi8((1 << plane_bits) - 1));
      part = shifted<-shift>(part);
      if constexpr (!first) part = _mm512_add_epi8(part, load_bytes(out + c, count));
      store_bytes(out + c, part, count);
    }
    plane_to_bytes<plane_bits, shift, first, j + 1>(plane, d, out + n);
  }
}

// Codes in planes, as they are stored: code - centre + zero.
template <int bits, int centre>
struct PackedCodes {
  static_assert(bits <= 6 || bits == 8);  // of at most two planes
  static constexpr int zero = centre;
  static constexpr Packing packing = Packing::other;

  static void row(const uint8_t* row, int d, uint8_t* out) {
    if constexpr (bits == 8) {
      std::memcpy(out, row, static_cast<size_t>(d));
    } else {
      constexpr int large = large_plane(bits);
      constexpr int small = small_plane(bits);
      plane_to_bytes<large, small, true>(row, d, out);
      if constexpr (small > 0) {
        plane_to_bytes<small, 0, false>(row + packed_row_bytes(large, d), d, out);
      }
    }
  }
  template <int d>
  static void row(const uint8_t* row, std::integral_constant<int, d> /*d*/, uint8_t* out) {
    registers_of_row<bits, d>(row, out);
  }
  template <int d>
  static void columns(const uint8_t* rows, size_t stride, std::integral_constant<int, d> /*d*/,
                      uint8_t* out) {
    registers_of_columns<bits, d>(rows, stride, out);
  }
};

struct SignedBytes {
  static constexpr int zero = 128;
  static constexpr Packing packing = Packing::other;

  template <class Size>
  static void row(const uint8_t* row, Size d, uint8_t* out) {
    const __m512i sign = _mm512_set1_epi8(-128);
    int c = 0;
    for (; c + 64 <= d; c += 64) {
      _mm512_storeu_si512(out + c, _mm512_xor_si512(_mm512_loadu_si512(row + c), sign));
    }
    if (c < d) store_bytes(out + c, _mm512_xor_si512(load_bytes(row + c, d - c), sign), d - c);
  }
  template <int d>
  static void columns(const uint8_t* rows, size_t stride, std::integral_constant<int, d> /*d*/,
                      uint8_t* out) {
    for (int c = 0; c < d; c += 64) {
      __m512i x[4];
      side_by_side_64(rows + c, stride, x);
      for (int i = 0; i < 4; ++i) {
        _mm512_storeu_si512(out + 4 * c + 64 * i, _mm512_xor_si512(x[i], _mm512_set1_epi8(-128)));
      }
    }
  }
};

// Calls rows(d) with d as a constant for heads of the usual sizes.
template <class Rows>
inline void with_constant_size(int d, Rows rows) {
  if (d == 64) return rows(std::integral_constant<int, 64>());
  if (d == 128) return rows(std::integral_constant<int, 128>());
  if (d == 256) return rows(std::integral_constant<int, 256>());
  rows(d);
}

// IntegerCodes::rows and ::columns.
template <class Format>
inline void code_rows(const uint8_t* codes, int d, int first, int count, void* out) {
  const size_t row_bytes = Format::row_bytes(d);
  const uint8_t* from = codes + first * row_bytes;
  auto* to = static_cast<uint8_t*>(out);
  with_constant_size(d, [&](auto size) {
    for (int i = 0; i < count; ++i, to += size, from += row_bytes) {
      Format::Codes::row(from, size, to);
    }
  });
}

template <class Format>
inline void code_columns(const uint8_t* codes, int d, int first, int count, void* out) {
  const size_t row_bytes = Format::row_bytes(d);
  const uint8_t* from = codes + first * row_bytes;
  auto* to = static_cast<uint8_t*>(out);
  with_constant_size(d, [&](auto size) {
    for (int i = 0; i < count; i += 4, to += 4 * size, from += 4 * row_bytes) {
      if constexpr (std::is_same_v<decltype(size), int>) {
        alignas(64) uint8_t rows[4 * max_head_dim];
        for (int row = 0; row < 4; ++row) {
          Format::Codes::row(from + row * row_bytes, d, rows + row * max_head_dim);
        }
        for (int c = 0; c < d; c += 16) {
          _mm512_storeu_si512(to + 4 * c, side_by_side_16(rows + c, max_head_dim));
        }
      } else {
        Format::Codes::columns(from, row_bytes, size, to);
      }
    }
  });
}

}  // namespace kvart::KVART_ISA

#endif
