// Takes the blocks of packed weight types apart.
#include "model/ops/block_codes.h"

#include <cstring>

#include "base/check.h"

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
