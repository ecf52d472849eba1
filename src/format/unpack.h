// Packed codes as integers, for decoding and for attention that multiplies integers: rows of codes,
// or those of some tokens side by side, in words; unpack_bytes.h has them in bytes (CodeLayout).
#pragma once

#include <type_traits>

#include "format/kernels.h"
#include "format/rows.h"
#include "format/unpack_bytes.h"

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

#if defined(KVART_ISA_avx512)

inline constexpr CodeLayout code_layout = CodeLayout::bytes;

#else

inline constexpr CodeLayout code_layout = CodeLayout::words;

template <class Source>
inline void signed_bytes_to_words(const Source& from, int d, int16_t* out) {
  const int words = d * Source::rows;
  int c = 0;
#if defined(KVART_ISA_avx2)
  for (; c + 16 <= words; c += 16) Words<16>::widened<false>(from, c).store(out + c);
#endif
  for (; c < words; ++c) {
    const int byte = from.byte(c);
    out[c] = static_cast<int16_t>(byte < 128 ? byte : byte - 256);
  }
}

// The codes of a format's rows: code - centre in planes, and signed bytes.
template <int bits, int centre>
struct PackedCodes {
  static constexpr int zero = 0;
  static constexpr Packing packing = bits == 8 && centre == 128  ? Packing::bytes
                                     : bits == 4 && centre == 8  ? Packing::nibbles
                                     : bits == 5 && centre == 16 ? Packing::nibbles_and_bits
                                     : bits == 6 && centre == 32 ? Packing::nibbles_and_pairs
                                                                 : Packing::other;

  template <class Source>
  static void words(Source row, int d, int16_t* out) {
    codes_to_words<bits>(row, d, centre, out);
  }
};

struct SignedBytes {
  static constexpr int zero = 0;
  static constexpr Packing packing = Packing::signed_bytes;

  template <class Source>
  static void words(Source row, int d, int16_t* out) {
    signed_bytes_to_words(row, d, out);
  }
};

// Calls rows(d) with d as a constant for heads of the usual sizes, so that their loops have a
// constant length.
template <class Rows>
inline void with_constant_size(int d, Rows rows) {
  if (d == 64) return rows(std::integral_constant<int, 64>());
  if (d == 128) return rows(std::integral_constant<int, 128>());
  rows(d);
}

// IntegerCodes::rows and ::columns.
template <class Format>
inline void code_rows(const uint8_t* codes, int d, int first, int count, void* out) {
  const size_t row_bytes = Format::row_bytes(d);
  const uint8_t* from = codes + first * row_bytes;
  auto* to = static_cast<int16_t*>(out);
  with_constant_size(d, [&](auto size) {
    for (int i = 0; i < count; ++i, to += size, from += row_bytes) {
      Format::Codes::words(OneRow{from}, size, to);
    }
  });
}

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
