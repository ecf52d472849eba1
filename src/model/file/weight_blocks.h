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

// Decodes `values` values (a multiple of the type's block) from weight_bytes(type, values) bytes at
// `data`, at any address, into out[0, values). Each value is computed in f32 exactly as its formula
// above is written.
void decode_weights(WeightType type, const uint8_t* data, size_t values, float* out);

}  // namespace kvart
