// Products of queries and probabilities in words with codes as they are stored: what a register
// widens is multiplied for up to four rows at once and never written.
#pragma once

#include "attention/isa/integer_rows.h"
#include "attention/isa/ivec.h"
#include "attention/isa/prefetch.h"
#include "attention/isa/row_groups.h"

#if defined(KVART_ISA_avx2)

namespace kvart::KVART_ISA {

constexpr int packed_rows = 4;

// Registers of words from stored bytes: widen() takes 16 bytes that a caller has put together,
// load() those of a row from byte c on. Words are code + zero: what that adds to a sum is zero
// times the sum of the row that the codes are multiplied with. rows_of_four_tokens: rows of which
// the registers hold the sums for four tokens, beside those that the words are made in.
inline __m128i load_16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

struct SignedByteWords {
  static constexpr int parts = 1;  // words of a byte
  static constexpr int zero = 0;
  static constexpr int rows_of_four_tokens = 3;
  static void widen(__m128i bytes, __m256i* words) { words[0] = _mm256_cvtepi8_epi16(bytes); }
  static void load(const uint8_t* row, int c, int /*head_dim*/, __m256i* words) {
    widen(load_16(row + c), words);
  }
};

struct ByteWords {
  static constexpr int parts = 1;
  static constexpr int zero = 128;
  static constexpr int rows_of_four_tokens = 3;
  static void widen(__m128i bytes, __m256i* words) { words[0] = _mm256_cvtepu8_epi16(bytes); }
  static void load(const uint8_t* row, int c, int /*head_dim*/, __m256i* words) {
    widen(load_16(row + c), words);
  }
};

struct NibbleWords {
  static constexpr int parts = 2;
  static constexpr int zero = 8;
  static constexpr int rows_of_four_tokens = 3;
  static void widen(__m128i bytes, __m256i* words) {
    const __m256i both = _mm256_cvtepu8_epi16(bytes);
    words[0] = _mm256_and_si256(both, _mm256_set1_epi16(15));
    words[1] = _mm256_srli_epi16(both, 4);
  }
  static void load(const uint8_t* row, int c, int /*head_dim*/, __m256i* words) {
    widen(load_16(row + c), words);
  }
};

// Nibbles, and behind them a plane of the `low_bits` last bits of each code: a byte of that plane
// has those of 8 / low_bits channels, which lie as far from each other as the plane has bytes.
template <int low_bits>
struct NibbleAndLowWords {
  static constexpr int parts = 2;
  static constexpr int zero = 8 << low_bits;
  static constexpr int rows_of_four_tokens = 2;
  static void load(const uint8_t* row, int c, int head_dim, __m256i* words) {
    const int plane_bytes = head_dim / 8 * low_bits;
    const uint8_t* plane = row + head_dim / 2;
    const __m256i both = _mm256_cvtepu8_epi16(load_16(row + c));
    const __m256i low = plane_bytes >= 16 ? low_words(plane, c, plane_bytes)
                                          : low_words_of_eight(plane, c / plane_bytes);
    const __m256i low_mask = _mm256_set1_epi16((1 << low_bits) - 1);
    const __m256i high_mask = _mm256_set1_epi16(15 << low_bits);
    words[0] = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(both, low_bits), high_mask),
                               _mm256_and_si256(low, low_mask));
    words[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(both, 4 - low_bits), high_mask),
                               _mm256_and_si256(_mm256_srli_epi16(low, 4), low_mask));
  }

 private:
  // Bytes of the plane, shifted so that the last bits of channels c to c + 15 come first; those of
  // the other half of the channels are 4 bits on.
  static __m256i low_words(const uint8_t* plane, int c, int plane_bytes) {
    return _mm256_srl_epi16(_mm256_cvtepu8_epi16(load_16(plane + c % plane_bytes)),
                            _mm_cvtsi32_si128(c / plane_bytes * low_bits));
  }
  // The same of a plane of eight bytes: eight channels have bit `bit` of them, the next eight the
  // one after it. A product shifts each half by a number of its own.
  static __m256i low_words_of_eight(const uint8_t* plane, int bit) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(plane));
    const __m256i twice = _mm256_cvtepu8_epi16(_mm_unpacklo_epi64(bytes, bytes));
    const __m128i first = _mm_set1_epi16(static_cast<int16_t>(1 << (7 - bit)));
    const __m256i factors = _mm256_set_m128i(_mm_srli_epi16(first, 1), first);
    return _mm256_srli_epi16(_mm256_mullo_epi16(twice, factors), 7);
  }
};

// Call function(words) with the type for the packing.
template <class Function>
inline void with_sum_words(Packing packing, Function function) {
  if (packing == Packing::signed_bytes) function(SignedByteWords{});
  if (packing == Packing::bytes) function(ByteWords{});
  if (packing == Packing::nibbles) function(NibbleWords{});
}
template <class Function>
inline void with_score_words(Packing packing, Function function) {
  with_sum_words(packing, function);
  if (packing == Packing::nibbles_and_bits) function(NibbleAndLowWords<1>{});
  if (packing == Packing::nibbles_and_pairs) function(NibbleAndLowWords<2>{});
}

// zero * the sum of a row of n words.
template <class Words>
inline int zero_sum(const int16_t* row, int n) {
  if constexpr (Words::zero == 0) return 0;
  __m256i sum = _mm256_setzero_si256();
  for (int i = 0; i < n; i += ivec_words) {
    sum = add_products(sum, load_words(row + i), _mm256_set1_epi16(Words::zero));
  }
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
}

// Sums over the lanes of a, b, c and d.
inline __m128i four_sums(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  const __m256i sums =
      _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  return _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
}

constexpr int fetched_tokens = 8;  // of scores, between two times that something is fetched

// Tokens of a tile of scores: as many as there are registers for their sums, beside those that put
// the words together.
template <class Words>
constexpr int tokens_of_tile(int rows) {
  return rows <= Words::rows_of_four_tokens ? 4 : 2;
}

// The sums of `rows` rows and two or four tokens, kept as integers where their scores will be.
template <class Words, int rows>
inline void packed_scores_tile(const int16_t* q, int head_dim, const uint8_t* k, size_t row_bytes,
                               float* s) {
  constexpr int tokens = tokens_of_tile<Words>(rows);
  __m256i sum[rows][tokens];
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < tokens; ++t) sum[r][t] = _mm256_setzero_si256();
  }
  const int part_words = head_dim / Words::parts;
  int c = 0;
  do {  // at least once: the sums then never leave their registers
    for (int t = 0; t < tokens; ++t) {
      __m256i words[Words::parts];
      Words::load(k + t * row_bytes, c, head_dim, words);
      for (int part = 0; part < Words::parts; ++part) {
        for (int r = 0; r < rows; ++r) {
          const __m256i query = load_words(q + r * head_dim + part * part_words + c);
          sum[r][t] = add_products(sum[r][t], words[part], query);
        }
      }
    }
    c += ivec_words;
  } while (c < part_words);
  if constexpr (tokens == 4) {
    for (int r = 0; r < rows; ++r) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(s + r * score_stride),
                       four_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
    }
  } else {
    for (int r = 0; r < rows; r += 2) {
      const int second = r + 1 < rows ? r + 1 : r;
      const __m128i sums = four_sums(sum[r][0], sum[r][1], sum[second][0], sum[second][1]);
      float* row = s + r * score_stride;
      _mm_storel_epi64(reinterpret_cast<__m128i*>(row), sums);
      if (second == r) break;
      _mm_storeh_pi(reinterpret_cast<__m64*>(row + score_stride), _mm_castsi128_ps(sums));
    }
  }
}

// Scores of a row from its sums: less what the words' zero added to each.
inline void sums_to_scores(int zeros, float step, float added, int tokens, float* s) {
  for (int t = 0; t < tokens; t += vec_lanes) {
    const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + t));
    const Vec whole = to_float(_mm256_sub_epi32(sums, _mm256_set1_epi32(zeros)));
    store(s + t, fma(whole, broadcast(step), broadcast(added)));
  }
}

inline void packed_scores(const int16_t* q, const float* step, const float* added, int rows,
                          int head_dim, const PackedRows& k, float* s, Upcoming next) {
  Fetching fetching(next, rows * k.tokens);
  with_score_words(k.packing, [&]<class Words>(Words) {
    for_row_groups<packed_rows, true>(rows, [&]<int n>(int r) {
      constexpr int tokens = tokens_of_tile<Words>(n);
      const int16_t* query = q + static_cast<size_t>(r) * head_dim;
      float* row = s + static_cast<size_t>(r) * score_stride;
      for (int t = 0; t < k.tokens; t += tokens) {
        if (t % fetched_tokens == 0) fetching.ahead_of(n * fetched_tokens);
        packed_scores_tile<Words, n>(query, head_dim, k.codes + t * k.row_bytes, k.row_bytes,
                                     row + t);
      }
      for (int i = 0; i < n; ++i) {
        sums_to_scores(zero_sum<Words>(query + i * head_dim, head_dim), step[r + i], added[r + i],
                       k.tokens, row + i * score_stride);
      }
    });
  });
}

// Output of `rows` rows: `groups` times 16 channels of bytes, or of nibbles 8 and the 8 that share
// their bytes. A function of its own, as sums_tile.
template <class Words, int rows, int groups>
[[gnu::noinline]] void packed_sums_tile(const int16_t* p, const SumsToOutput* joins,
                                        const int* zeros, const PackedRows& v, int head_dim,
                                        int byte, float* o) {
  constexpr int vecs = 2 * groups;
  __m256i sum[rows][vecs];
  for (int r = 0; r < rows; ++r) {  // less what the words' zero adds
    for (int i = 0; i < vecs; ++i) sum[r][i] = _mm256_set1_epi32(-zeros[r]);
  }
  const uint8_t* codes = v.codes + byte;
  int t = 0;
  do {  // at least once: the sums then never leave their registers
    __m256i words[vecs];
    for (int g = 0; g < groups; ++g) {
      // Bytes of two tokens side by side.
      if constexpr (Words::parts == 1) {
        const auto* at = reinterpret_cast<const __m128i*>(codes + 16 * g);
        const auto* behind = reinterpret_cast<const __m128i*>(codes + 16 * g + v.row_bytes);
        const __m128i first = _mm_loadu_si128(at), second = _mm_loadu_si128(behind);
        Words::widen(_mm_unpacklo_epi8(first, second), words + 2 * g);
        Words::widen(_mm_unpackhi_epi8(first, second), words + 2 * g + 1);
      } else {
        const auto* at = reinterpret_cast<const __m128i*>(codes + 8 * g);
        const auto* behind = reinterpret_cast<const __m128i*>(codes + 8 * g + v.row_bytes);
        Words::widen(_mm_unpacklo_epi8(_mm_loadl_epi64(at), _mm_loadl_epi64(behind)),
                     words + 2 * g);
      }
    }
    for (int r = 0; r < rows; ++r) {
      const __m256i pair = broadcast_pair(p + r * score_stride + t);
      for (int i = 0; i < vecs; ++i) sum[r][i] = add_products(sum[r][i], pair, words[i]);
    }
    t += 2;
    codes += 2 * v.row_bytes;
  } while (t < v.tokens);
  for (int r = 0; r < rows; ++r) {
    const SumsToOutput join = joins[r];  // a copy, which what is stored can't change
    for (int i = 0; i < vecs; ++i) {
      const int channel =
          Words::parts == 1 ? byte + 8 * i : byte + i / 2 * 8 + i % 2 * (head_dim / 2);
      join.join(to_float(sum[r][i]), channel, o + r * head_dim);
    }
  }
}

inline void packed_sums(const int16_t* p, const float* step, const float* added, int rows,
                        const PackedRows& v, const IntegerSums& what, float* o, Upcoming next) {
  Fetching fetching(next, rows * (what.end_channel - what.first_channel));
  with_sum_words(v.packing, [&]<class Words>(Words) {
    for_row_groups<packed_rows, true>(rows, [&]<int n>(int r) {
      constexpr int groups = n <= 2 ? 2 : 1;
      constexpr int group_bytes = 16 / Words::parts;
      SumsToOutput joins[n];
      int zeros[n];
      const int16_t* row = p + static_cast<size_t>(r) * score_stride + what.first_token;
      for (int i = 0; i < n; ++i) {
        joins[i] = sums_to_output(what, r + i, step[r + i], added[r + i]);
        zeros[i] = zero_sum<Words>(row + i * score_stride, v.tokens);
      }
      float* out = o + static_cast<size_t>(r) * what.head_dim;
      int byte = what.first_channel / Words::parts;
      const int end = what.end_channel / Words::parts;
      for (; byte + groups * group_bytes <= end; byte += groups * group_bytes) {
        fetching.ahead_of(n * groups * 16);
        packed_sums_tile<Words, n, groups>(row, joins, zeros, v, what.head_dim, byte, out);
      }
      for (; byte < end; byte += group_bytes) {
        fetching.ahead_of(n * 16);
        packed_sums_tile<Words, n, 1>(row, joins, zeros, v, what.head_dim, byte, out);
      }
    });
  });
}

}  // namespace kvart::KVART_ISA

#endif
