// Takes the blocks of packed weight types apart.
#include "model/ops/block_codes.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"

namespace kvart {

namespace {

void read_nibbles(const uint8_t (&packed)[16], GroupCodes& group) {
  for (int i = 0; i < 16; ++i) {
    group.codes[i] = packed[i] & 15;
    group.codes[i + 16] = packed[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t (&high_bits)[4], GroupCodes& group) {
  for (int i = 0; i < group_columns; ++i) {
    const int bit = high_bits[i / 8] >> (i % 8) & 1;
    group.codes[i] = static_cast<uint8_t>(group.codes[i] | bit << 4);
  }
}

// What Q4_K and Q5_K share: the low four bits and the nested scale and minimum.
template <class Block>
GroupCodes nested_group(const Block& block, int index) {
  GroupCodes group;
  for (int i = 0; i < group_columns; ++i) {
    group.codes[i] = block.codes[index / 2 * 32 + i] >> (index % 2 * 4) & 15;
  }
  const GroupScale steps = unpack_group_scale(block.scales, index);
  group.scale = block.scale;
  group.minimum = negated_f16(block.minimum);
  group.steps[0] = static_cast<uint8_t>(steps.scale);
  group.steps[1] = static_cast<uint8_t>(steps.minimum);
  return group;
}

// Codes of 4 bits that are places in a table of signed values.
void read_table_values(const uint8_t (&packed)[16], const int8_t (&table)[16], int times,
                       GroupCodes& group) {
  read_nibbles(packed, group);
  for (uint8_t& code : group.codes) code = static_cast<uint8_t>(table[code] * times + 128);
}

template <class Block>
GroupCodes read_group(const uint8_t* row, int64_t block, int group) {
  Block copy;
  std::memcpy(&copy, row + block * static_cast<int64_t>(sizeof copy), sizeof copy);
  return group_codes(copy, group);
}

}  // namespace

GroupCodes group_codes(const BlockQ4_0& block, int /*group*/) {
  GroupCodes group;
  read_nibbles(block.codes, group);
  group.scale = block.scale;
  return group;
}

GroupCodes group_codes(const BlockQ4_1& block, int /*group*/) {
  GroupCodes group;
  read_nibbles(block.codes, group);
  group.scale = block.scale;
  group.minimum = block.minimum;
  return group;
}

GroupCodes group_codes(const BlockQ5_0& block, int /*group*/) {
  GroupCodes group;
  read_nibbles(block.codes, group);
  add_fifth_bits(block.high_bits, group);
  group.scale = block.scale;
  return group;
}

GroupCodes group_codes(const BlockQ5_1& block, int /*group*/) {
  GroupCodes group;
  read_nibbles(block.codes, group);
  add_fifth_bits(block.high_bits, group);
  group.scale = block.scale;
  group.minimum = block.minimum;
  return group;
}

GroupCodes group_codes(const BlockQ8_0& block, int /*group*/) {
  GroupCodes group;
  for (int i = 0; i < group_columns; ++i) {
    group.codes[i] = static_cast<uint8_t>(block.codes[i] + 128);
  }
  group.scale = block.scale;
  return group;
}

GroupCodes group_codes(const BlockQ4_K& block, int group) {
  return nested_group(block, group);
}

GroupCodes group_codes(const BlockQ5_K& block, int group) {
  GroupCodes result = nested_group(block, group);
  for (int i = 0; i < group_columns; ++i) {
    const int bit = block.high_bits[i] >> group & 1;
    result.codes[i] = static_cast<uint8_t>(result.codes[i] | bit << 4);
  }
  return result;
}

GroupCodes group_codes(const BlockQ6_K& block, int group) {
  GroupCodes result;
  const int half = group / 4;
  const int part = group % 4;
  for (int i = 0; i < group_columns; ++i) {
    const int low = block.low_bits[64 * half + 32 * (part % 2) + i] >> (part / 2 * 4) & 15;
    const int high = block.high_bits[32 * half + i] >> (2 * part) & 3;
    result.codes[i] = static_cast<uint8_t>(low | high << 4);
  }
  result.scale = block.scale;
  result.steps[0] = static_cast<uint8_t>(block.scales[2 * group]);
  result.steps[1] = static_cast<uint8_t>(block.scales[2 * group + 1]);
  return result;
}

GroupCodes group_codes(const BlockQ2_K& block, int group) {
  GroupCodes result;
  for (int i = 0; i < group_columns; ++i) {
    result.codes[i] = block.codes[32 * (group / 4) + i] >> (2 * (group % 4)) & 3;
  }
  result.scale = block.scale;
  result.minimum = negated_f16(block.minimum);
  for (int half = 0; half < 2; ++half) {
    const int steps = block.scales[2 * group + half];
    result.steps[half] = static_cast<uint8_t>(steps & 15);
    result.steps[2 + half] = static_cast<uint8_t>(steps >> 4);
  }
  return result;
}

GroupCodes group_codes(const BlockQ3_K& block, int group) {
  GroupCodes result;
  for (int i = 0; i < group_columns; ++i) {
    const int low = block.codes[32 * (group / 4) + i] >> (2 * (group % 4)) & 3;
    const int high = block.high_bits[i] >> group & 1;
    result.codes[i] = static_cast<uint8_t>((low | high << 2) - 4 + 32);
  }
  result.scale = block.scale;
  for (int half = 0; half < 2; ++half) {
    result.steps[half] = static_cast<uint8_t>(unpack_q3_scale(block.scales, 2 * group + half));
  }
  return result;
}

GroupCodes group_codes(const BlockIQ4_NL& block, int /*group*/) {
  GroupCodes result;
  read_table_values(block.codes, iq4_values, 1, result);
  result.scale = block.scale;
  return result;
}

GroupCodes group_codes(const BlockIQ4_XS& block, int group) {
  GroupCodes result;
  uint8_t codes[16];
  std::memcpy(codes, block.codes + static_cast<size_t>(16 * group), sizeof codes);
  read_table_values(codes, iq4_values, 1, result);
  result.scale = block.scale;
  result.steps[0] = result.steps[1] = static_cast<uint8_t>(unpack_iq4_scale(block, group));
  return result;
}

GroupCodes group_codes(const BlockMXFP4& block, int /*group*/) {
  // Above f16's largest power of two the codes take over: 8 · 12 is still one of 8 bits.
  const int power = block.exponent - 128;
  const int times = power > 15 ? 8 : 1;
  GroupCodes result;
  read_table_values(block.codes, mxfp4_values, times, result);
  result.scale = f32_to_f16(std::ldexp(1.0f / static_cast<float>(times), power));
  return result;
}

GroupCodes group_codes(WeightType type, const uint8_t* row, int64_t group) {
  const int64_t groups = weight_type_info(type).block_values / group_columns;
  switch (type) {
#define KVART_CASE(name, bits, parameters, offset_bits) \
  case WeightType::name:                                \
    return read_group<Block##name>(row, group / groups, static_cast<int>(group % groups));
    KVART_PACKED_TYPES(KVART_CASE)
#undef KVART_CASE
    default:
      break;
  }
  KVART_CHECK(false, "type %u has no codes", static_cast<unsigned>(type));
  return {};
}

}  // namespace kvart
