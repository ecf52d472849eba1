// The codes and parameters of 32 columns of a packed weight type, in the one form that all of them
// come down to (packed_layout.h), read from a file's blocks.
#pragma once

#include <cstdint>

#include "model/file/weight_blocks.h"
#include "model/ops/packed_layout.h"

namespace kvart {

struct GroupCodes {
  uint8_t codes[group_columns];  // unsigned
  // The f16 scale and minimum of the group, or the d and n that scales nest in (n is negated: the
  // minimum is added).
  uint16_t scale = 0;
  uint16_t minimum = 0;
  // What nested parameters multiply d and n, d and d, or d, d, n and n with.
  uint8_t steps[4] = {0, 0, 0, 0};
};

constexpr uint16_t negated_f16(uint16_t value) {
  return static_cast<uint16_t>(value ^ 0x8000u);
}

// `group`: which 32 columns of the block.
GroupCodes group_codes(const BlockQ4_0& block, int group);
GroupCodes group_codes(const BlockQ4_1& block, int group);
GroupCodes group_codes(const BlockQ5_0& block, int group);
GroupCodes group_codes(const BlockQ5_1& block, int group);
GroupCodes group_codes(const BlockQ8_0& block, int group);
GroupCodes group_codes(const BlockQ4_K& block, int group);
GroupCodes group_codes(const BlockQ5_K& block, int group);
GroupCodes group_codes(const BlockQ6_K& block, int group);
GroupCodes group_codes(const BlockQ2_K& block, int group);
GroupCodes group_codes(const BlockQ3_K& block, int group);
GroupCodes group_codes(const BlockIQ4_NL& block, int group);
GroupCodes group_codes(const BlockIQ4_XS& block, int group);
// Exact for exponents from 104 to 146 (scales that f16 has); a smaller scale is rounded to one of
// f16, and a larger one isn't possible (max_mxfp4_exponent).
GroupCodes group_codes(const BlockMXFP4& block, int group);
inline constexpr int max_mxfp4_exponent = 146;

// Of group `group` of a row of such blocks, at any address.
GroupCodes group_codes(WeightType type, const uint8_t* row, int64_t group);

}  // namespace kvart
