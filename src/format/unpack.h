// Packed codes as integers, for decoding and for attention that multiplies integers: rows of codes,
// or those of some tokens side by side, in words or in bytes (CodeLayout).
#pragma once

#include <type_traits>

#include "format/kernels.h"
#include "format/rows.h"

namespace kvart::KVART_ISA {

#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
inline __m128i load_low(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
#endif

// Bytes of one row.
struct OneRow {
  static constexpr int rows = 1;
  const uint8_t* row;

  uint8_t byte(int i) const { return row[i]; }
  OneRow after(size_t bytes) const { return {row + bytes}; }
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
  __m128i load_8(int i) const {
    return load_low(row + i);
  }
  __m128i load_16(int i) const {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i));
  }
#endif
};

// Bytes of two rows in turn: byte 2i is byte i of the first.
struct TwoRows {
  static constexpr int rows = 2;
  const uint8_t* first;
  const uint8_t* second;

  uint8_t byte(int i) const { return i % 2 == 0 ? first[i / 2] : second[i / 2]; }
  TwoRows after(size_t bytes) const { return {first + bytes, second + bytes}; }
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
  // Reads 4 bytes of each row.
  __m128i load_8(int i) const {
    int32_t a, b;
    std::memcpy(&a, first + i / 2, sizeof(a));
    std::memcpy(&b, second + i / 2, sizeof(b));
    return _mm_unpacklo_epi8(_mm_cvtsi32_si128(a), _mm_cvtsi32_si128(b));
  }
  __m128i load_16(int i) const {
    return _mm_unpacklo_epi8(load_low(first + i / 2), load_low(second + i / 2));
  }
#endif
};

#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)

// Registers of `words` 16-bit integers, with the same operations for each size.
template <int words>
struct Words;

template <>
struct Words<8> {
  __m128i x;
  template <bool unsigned_bytes, class Source>
  static Words widened(const Source& from, int i) {
    const __m128i bytes = from.load_8(i);
    return {unsigned_bytes ? _mm_cvtepu8_epi16(bytes) : _mm_cvtepi8_epi16(bytes)};
  }
  static Words all(int x) { return {_mm_set1_epi16(static_cast<int16_t>(x))}; }
  static Words load(const int16_t* p) {
    return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))};
  }
  void store(int16_t* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x); }
  Words operator+(Words y) const { return {_mm_add_epi16(x, y.x)}; }
  Words operator&(Words y) const { return {_mm_and_si128(x, y.x)}; }
  template <int right>
  Words shifted() const {
    return {right >= 0 ? _mm_srli_epi16(x, right & 15) : _mm_slli_epi16(x, -right & 15)};
  }
};

template <>
struct Words<16> {
  __m256i x;
  template <bool unsigned_bytes, class Source>
  static Words widened(const Source& from, int i) {
    const __m128i bytes = from.load_16(i);
    return {unsigned_bytes ? _mm256_cvtepu8_epi16(bytes) : _mm256_cvtepi8_epi16(bytes)};
  }
  static Words all(int x) { return {_mm256_set1_epi16(static_cast<int16_t>(x))}; }
  static Words load(const int16_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  void store(int16_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  Words operator+(Words y) const { return {_mm256_add_epi16(x, y.x)}; }
  Words operator&(Words y) const { return {_mm256_and_si256(x, y.x)}; }
  template <int right>
  Words shifted() const {
    return {right >= 0 ? _mm256_srli_epi16(x, right & 15) : _mm256_slli_epi16(x, -right & 15)};
  }
};

#if defined(KVART_ISA_avx512)
template <>
struct Words<32> {
  __m512i x;
  template <bool unsigned_bytes, class Source>
  static Words widened(const Source& from, int i) {
    const __m256i bytes = _mm256_set_m128i(from.load_16(i + 16), from.load_16(i));
    return {unsigned_bytes ? _mm512_cvtepu8_epi16(bytes) : _mm512_cvtepi8_epi16(bytes)};
  }
  static Words all(int x) { return {_mm512_set1_epi16(static_cast<int16_t>(x))}; }
  static Words load(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
  void store(int16_t* p) const { _mm512_storeu_si512(p, x); }
  Words operator+(Words y) const { return {_mm512_add_epi16(x, y.x)}; }
  Words operator&(Words y) const { return {_mm512_and_si512(x, y.x)}; }
  template <int right>
  Words shifted() const {
    return {right >= 0 ? _mm512_srli_epi16(x, right & 15) : _mm512_slli_epi16(x, -right & 15)};
  }
};
#endif

// Part j and the parts after it of the bytes of a plane; `mask`, `centre` and `to` as below.
template <int plane_bits, int shift, bool first, int j, int words>
inline void parts_to_words(Words<words> x, int bytes, int centre, int16_t* to) {
  if constexpr (plane_bits * j < 8) {
    auto part = x.template shifted<plane_bits * j - shift>();
    if constexpr (shift > 0 || plane_bits * (j + 1) < 8) {
      part = part & Words<words>::all(((1 << plane_bits) - 1) << shift);
    }
    (part + (first ? Words<words>::all(-centre) : Words<words>::load(to))).store(to);
    parts_to_words<plane_bits, shift, first, j + 1>(x, bytes, centre, to + bytes);
  }
}

#endif

// One plane of `plane_bits` into words: its bits go to `shift` and above. The first plane sets
// words to its part - centre, later ones add theirs. words: of all rows together.
template <int plane_bits, int shift, bool first, class Source>
inline void plane_to_words(const Source& from, int words, int centre, int16_t* out) {
  constexpr int per_byte = 8 / plane_bits;
  constexpr int mask = ((1 << plane_bits) - 1) << shift;
  const int bytes = words / per_byte;
  int c = 0;
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
  const auto take = [&]<int size>() {
    for (; c + size <= bytes; c += size) {
      const auto x = Words<size>::template widened<true>(from, c);
      parts_to_words<plane_bits, shift, first, 0>(x, bytes, centre, out + c);
    }
  };
#if defined(KVART_ISA_avx512)
  take.template operator()<32>();
#endif
  take.template operator()<16>();
  take.template operator()<8>();
#endif
  for (; c < bytes; ++c) {
    for (int j = 0; j < per_byte; ++j) {
      const int part = ((from.byte(c) >> (plane_bits * j)) << shift) & mask;
      int16_t& to = out[c + j * bytes];
      to = static_cast<int16_t>(part + (first ? -centre : to));
    }
  }
}

// Codes of 2 to 8 bits in planes (rows.h), as code - centre. d: codes of a row.
template <int bits, class Source>
inline void codes_to_words(Source from, int d, int centre, int16_t* out) {
  const int words = d * Source::rows;
  if constexpr (bits == 8) {
    plane_to_words<8, 0, true>(from, words, centre, out);
  } else if constexpr ((bits & 4) != 0) {
    plane_to_words<4, bits - 4, true>(from, words, centre, out);
    from = from.after(packed_row_bytes(4, d));
    if constexpr ((bits & 2) != 0) plane_to_words<2, 0, false>(from, words, centre, out);
    if constexpr ((bits & 1) != 0) plane_to_words<1, 0, false>(from, words, centre, out);
  } else {
    plane_to_words<2, bits - 2, true>(from, words, centre, out);
    from = from.after(packed_row_bytes(2, d));
    if constexpr ((bits & 1) != 0) plane_to_words<1, 0, false>(from, words, centre, out);
  }
}

#if !defined(KVART_ISA_avx512)
template <class Source>
inline void signed_bytes_to_words(const Source& from, int d, int16_t* out) {
  const int words = d * Source::rows;
  int c = 0;
#if defined(KVART_ISA_avx2) || defined(KVART_ISA_avx512)
  for (; c + 16 <= words; c += 16) Words<16>::widened<false>(from, c).store(out + c);
#endif
  for (; c < words; ++c) {
    const int byte = from.byte(c);
    out[c] = static_cast<int16_t>(byte < 128 ? byte : byte - 256);
  }
}
#endif

#if defined(KVART_ISA_avx512)

// `count` bytes (at most 64), and zeros.
inline __m512i load_bytes(const void* p, int count) {
  return _mm512_maskz_loadu_epi8(count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1, p);
}
inline void store_bytes(uint8_t* p, __m512i x, int count) {
  _mm512_mask_storeu_epi8(p, count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1, x);
}

// How far to shift each word of n bytes repeated over a register, so that the first repetition has
// part 0 of its bytes in the lowest bits, the next one part 1 and so on.
template <int plane_bits, int n>
struct PartShifts {
  alignas(64) uint16_t words[32];
  constexpr PartShifts() : words() {
    for (int i = 0; i < 32; ++i) words[i] = static_cast<uint16_t>(plane_bits * (2 * i / n));
  }
};

// n bytes, repeated. n: 8, 16, 32 or 64.
template <int n>
inline __m512i repeated(const uint8_t* p) {
  if constexpr (n == 64) {
    return _mm512_loadu_si512(p);
  } else if constexpr (n == 32) {
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

// One plane of `plane_bits` into bytes: its bits go to `shift` and above. The first plane sets
// bytes to `base` + its part, later ones add theirs.
template <int plane_bits, int shift, bool first>
struct PlaneToBytes {
  static constexpr int per_byte = 8 / plane_bits;
  int base;

  void put(__m512i part, uint8_t* out, int count) const {
    part = _mm512_and_si512(part, _mm512_set1_epi8((1 << plane_bits) - 1));
    if constexpr (shift > 0) part = _mm512_slli_epi16(part, shift);
    const __m512i before =
        first ? _mm512_set1_epi8(static_cast<char>(base)) : load_bytes(out, count);
    store_bytes(out, _mm512_add_epi8(part, before), count);
  }

  template <int j = 0>
  void each_part(__m512i x, int n, uint8_t* out, int count) const {
    if constexpr (j < per_byte) {
      put(_mm512_srli_epi16(x, plane_bits * j), out + j * n, count);
      each_part<j + 1>(x, n, out, count);
    }
  }

  void row(const uint8_t* from, int d, uint8_t* out) const {
    const int n = d / per_byte;
    for (int c = 0; c < n; c += 64) {
      const int count = n - c < 64 ? n - c : 64;
      each_part(load_bytes(from + c, count), n, out + c, count);
    }
  }

  // Heads of 64 and 128: whole registers of all the parts that fit.
  template <int d>
  void row(const uint8_t* from, std::integral_constant<int, d> /*d*/, uint8_t* out) const {
    constexpr int n = d / per_byte;
    static constexpr PartShifts<plane_bits, n> shifts;
    __m512i x = _mm512_srlv_epi16(repeated<n>(from), _mm512_load_si512(shifts.words));
    put(x, out, 64);
    if constexpr (d == 128) put(_mm512_srli_epi16(x, plane_bits * 64 / n), out + 64, 64);
  }
};

#endif

// The codes of a format's rows: code - centre in planes, and signed bytes.
template <int bits, int centre>
struct PackedCodes {
  static_assert(bits <= 6 || bits == 8);  // of at most two planes

#if defined(KVART_ISA_avx512)
  // code - centre + 128
  template <class Size>
  static void bytes(const uint8_t* row, Size d, uint8_t* out) {
    constexpr int base = 128 - centre;
    if constexpr (bits == 8) {
      static_assert(base == 0);
      std::memcpy(out, row, static_cast<size_t>(d));
    } else {
      constexpr int large = bits >= 4 ? 4 : 2;
      PlaneToBytes<large, bits - large, true>{base}.row(row, d, out);
      if constexpr (bits > large) {
        PlaneToBytes<bits - large, 0, false>{base}.row(row + packed_row_bytes(large, d), d, out);
      }
    }
  }
#else
  template <class Source>
  static void words(Source row, int d, int16_t* out) {
    codes_to_words<bits>(row, d, centre, out);
  }
#endif
};

struct SignedBytes {
#if defined(KVART_ISA_avx512)
  template <class Size>
  static void bytes(const uint8_t* row, Size d, uint8_t* out) {
    for (int c = 0; c < d; c += 64) {
      const int count = d - c < 64 ? d - c : 64;
      store_bytes(out + c, _mm512_xor_si512(load_bytes(row + c, count), _mm512_set1_epi8(-128)),
                  count);
    }
  }
#else
  template <class Source>
  static void words(Source row, int d, int16_t* out) {
    signed_bytes_to_words(row, d, out);
  }
#endif
};

// Calls rows(d) with d as a constant for heads of the usual sizes, so that their loops have a
// constant length.
template <class Rows>
inline void with_constant_size(int d, Rows rows) {
  if (d == 64) return rows(std::integral_constant<int, 64>());
  if (d == 128) return rows(std::integral_constant<int, 128>());
  rows(d);
}

#if defined(KVART_ISA_avx512)
inline constexpr CodeLayout code_layout = CodeLayout::bytes;
using Code = uint8_t;
#else
inline constexpr CodeLayout code_layout = CodeLayout::words;
using Code = int16_t;
#endif

template <class Codes, class Size>
inline void unpack_row(const uint8_t* row, Size d, Code* out) {
#if defined(KVART_ISA_avx512)
  Codes::bytes(row, d, out);
#else
  Codes::words(OneRow{row}, d, out);
#endif
}

template <class Format>
inline void code_rows(const uint8_t* codes, int d, int first, int count, void* out) {
  const size_t row_bytes = Format::row_bytes(d);
  const uint8_t* from = codes + first * row_bytes;
  auto* to = static_cast<Code*>(out);
  with_constant_size(d, [&](auto size) {
    for (int i = 0; i < count; ++i, to += size, from += row_bytes) {
      unpack_row<typename Format::Codes>(from, size, to);
    }
  });
}

#if defined(KVART_ISA_avx512)

// Bytes of four rows side by side, 16 channels at a time. rows: [4][max_head_dim].
inline void interleave_four(const uint8_t* rows, int d, uint8_t* out) {
  // Dwords of the same channels together, then their bytes.
  const __m512i by_channels =
      _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i by_bytes = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
  for (int c = 0; c < d; c += 16, out += 64) {
    const auto load = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * max_head_dim + c));
    };
    __m512i x = _mm512_castsi128_si512(load(0));
    x = _mm512_inserti32x4(x, load(1), 1);
    x = _mm512_inserti32x4(x, load(2), 2);
    x = _mm512_inserti32x4(x, load(3), 3);
    _mm512_storeu_si512(out,
                        _mm512_shuffle_epi8(_mm512_permutexvar_epi32(by_channels, x), by_bytes));
  }
}

template <class Format>
inline void code_columns(const uint8_t* codes, int d, int first, int count, void* out) {
  const size_t row_bytes = Format::row_bytes(d);
  const uint8_t* from = codes + first * row_bytes;
  auto* to = static_cast<uint8_t*>(out);
  with_constant_size(d, [&](auto size) {
    alignas(64) uint8_t rows[4 * max_head_dim];
    for (int i = 0; i < count; i += 4, to += 4 * size) {
      for (int row = 0; row < 4; ++row, from += row_bytes) {
        Format::Codes::bytes(from, size, rows + row * max_head_dim);
      }
      interleave_four(rows, size, to);
    }
  });
}

#else

template <class Format>
inline void code_columns(const uint8_t* codes, int d, int first, int count, void* out) {
  const size_t row_bytes = Format::row_bytes(d);
  const uint8_t* from = codes + first * row_bytes;
  auto* to = static_cast<int16_t*>(out);
  with_constant_size(d, [&](auto size) {
    for (int i = 0; i < count; i += 2, to += 2 * size, from += 2 * row_bytes) {
      Format::Codes::words(TwoRows{from, from + row_bytes}, size, to);
    }
  });
}

#endif

}  // namespace kvart::KVART_ISA
