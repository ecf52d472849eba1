// The bytes of each weight block, and the plain decoder that every fast kernel is checked against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/file/weight_type.h"

namespace kvart {

// All numbers are little-endian; scale, minimum and the like are f16. A block lies at any address
// (a file's alignment promises nothing about a block's), so copy it with memcpy or load its bytes
// unaligned.

// Codes of 4 bits, a block of 32: codes[j] = code[j] | code[j + 16] << 4.
// value = scale·(code − 8)
struct BlockQ4_0 {
  uint16_t scale;
  uint8_t codes[16];
};

// value = scale·code + minimum
struct BlockQ4_1 {
  uint16_t scale;
  uint16_t minimum;
  uint8_t codes[16];
};

// Codes of 5 bits: the low four as in Q4_0, the fifth of code j is bit j of the little-endian u32
// high_bits. value = scale·(code − 16)
struct BlockQ5_0 {
  uint16_t scale;
  uint8_t high_bits[4];
  uint8_t codes[16];
};

// value = scale·code + minimum
struct BlockQ5_1 {
  uint16_t scale;
  uint16_t minimum;
  uint8_t high_bits[4];
  uint8_t codes[16];
};

// value = scale·code
struct BlockQ8_0 {
  uint16_t scale;
  int8_t codes[32];
};

// A block of 256 is 8 groups of 32. Group g has a 6-bit scale s and a 6-bit minimum m:
//   g < 4:  s = scales[g] & 63
//           m = scales[g + 4] & 63
//   g >= 4: s = scales[g + 4] & 15 | scales[g - 4] >> 6 << 4
//           m = scales[g + 4] >> 4 | scales[g] >> 6 << 4
// Codes: byte 32·p + j holds code j of group 2p in its low half and code j of group 2p + 1 in its
// high half. value = (scale·s)·code − (minimum·m)
struct BlockQ4_K {
  uint16_t scale;
  uint16_t minimum;
  uint8_t scales[12];
  uint8_t codes[128];
};

// As Q4_K, with a fifth bit: of code j of group g it is bit g of high_bits[j].
struct BlockQ5_K {
  uint16_t scale;
  uint16_t minimum;
  uint8_t scales[12];
  uint8_t high_bits[32];
  uint8_t codes[128];
};

// A block of 256 is 2 halves of 4 groups of 32; each 16 values have an 8-bit signed scale. Code j
// of group g of half h:
//   low four bits: of low_bits[64·h + 32·(g % 2) + j]; its low half if g < 2, else its high half
//   high two bits: high_bits[32·h + j] >> 2·g & 3
// value = (scale·scales[8·h + 2·g + j / 16])·(code − 32)
struct BlockQ6_K {
  uint8_t low_bits[128];
  uint8_t high_bits[64];
  int8_t scales[16];
  uint16_t scale;
};

// A block of 256 is 2 halves of 4 groups of 32. Each 16 values have a 4-bit scale and a 4-bit
// minimum: of values 16·p .. 16·p + 15 they are the low and the high half of scales[p]. Code j of
// group g of half h: codes[32·h + j] >> 2·g & 3.
// value = (scale·s)·code − (minimum·m)
struct BlockQ2_K {
  uint8_t scales[16];
  uint8_t codes[64];
  uint16_t scale;
  uint16_t minimum;
};

// As Q2_K, with a third bit: of code j of group g of half h it is bit 4·h + g of high_bits[j].
// Each 16 values have a 6-bit scale s, number p:
//   low four bits: scales[p] & 15 if p < 8, else scales[p − 8] >> 4
//   high two bits: scales[8 + p % 4] >> 2·(p / 4) & 3
// value = (scale·(s − 32))·(code − 4)
struct BlockQ3_K {
  uint8_t high_bits[32];
  uint8_t codes[64];
  uint8_t scales[12];
  uint16_t scale;
};

// Codes of 4 bits as in Q4_0, each a place in iq4_values. value = scale·iq4_values[code]
struct BlockIQ4_NL {
  uint16_t scale;
  uint8_t codes[16];
};

// A block of 256 is 8 groups of 32. Group g has a 6-bit scale:
//   s = scales_low[g / 2] >> 4·(g % 2) & 15 | (scales_high >> 2·g & 3) << 4
// Codes: of group g in codes[16·g ..], as in Q4_0. value = (scale·(s − 32))·iq4_values[code]
struct BlockIQ4_XS {
  uint16_t scale;
  uint16_t scales_high;
  uint8_t scales_low[4];
  uint8_t codes[128];
};

// Codes of 4 bits as in Q4_0, each a place in mxfp4_values (e2m1, doubled).
// value = 2^(exponent − 128)·mxfp4_values[code]
struct BlockMXFP4 {
  uint8_t exponent;
  uint8_t codes[16];
};

inline constexpr int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t mxfp4_values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockIQ4_NL) == 18);
static_assert(sizeof(BlockIQ4_XS) == 136 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);

// The 6-bit scale and minimum of group `group` (0..7) of a Q4_K or Q5_K block.
struct GroupScale {
  int scale;
  int minimum;
};
constexpr GroupScale unpack_group_scale(const uint8_t (&scales)[12], int group) {
  if (group < 4) return {scales[group] & 63, scales[group + 4] & 63};
  return {(scales[group + 4] & 15) | (scales[group - 4] >> 6 << 4),
          (scales[group + 4] >> 4) | (scales[group] >> 6 << 4)};
}

// The scale of values 16·p .. 16·p + 15 of a Q3_K block, less 32.
constexpr int unpack_q3_scale(const uint8_t (&scales)[12], int p) {
  const int low = p < 8 ? scales[p] & 15 : scales[p - 8] >> 4;
  return (low | (scales[8 + p % 4] >> 2 * (p / 4) & 3) << 4) - 32;
}

// The scale of group g of an IQ4_XS block, less 32.
constexpr int unpack_iq4_scale(const BlockIQ4_XS& block, int g) {
  const int low = block.scales_low[g / 2] >> 4 * (g % 2) & 15;
  return (low | (block.scales_high >> 2 * g & 3) << 4) - 32;
}

// Decodes `values` values (a multiple of the type's block) from weight_bytes(type, values) bytes at
// `data`, at any address, into out[0, values). Each value is computed in f32 exactly as its formula
// above is written.
void decode_weights(WeightType type, const uint8_t* data, size_t values, float* out);

}  // namespace kvart
