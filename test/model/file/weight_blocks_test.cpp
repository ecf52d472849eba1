// Weight blocks against values decoded by an independent implementation
// (test/oracle/weight_blocks.py), bit for bit.
#include "model/file/weight_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

namespace kvart {
namespace {

constexpr WeightType all_types[] = {
#define KVART_ENTRY(name, id, values, bytes) WeightType::name,
    KVART_WEIGHT_TYPES(KVART_ENTRY)
#undef KVART_ENTRY
};

std::vector<uint8_t> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

uint32_t read_u32(const std::vector<uint8_t>& bytes, size_t at) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

TEST(WeightBlocks, EqualTheReferenceBitForBit) {
  const auto file = read_bytes(KVART_TEST_DATA "/model/file/data/weight_blocks.bin");
  std::set<WeightType> seen;
  size_t at = 0;
  while (at < file.size()) {
    ASSERT_LE(at + 8, file.size());
    const auto type = weight_type_from_id(read_u32(file, at));
    ASSERT_TRUE(type.has_value());
    const size_t values = read_u32(file, at + 4);
    const size_t bytes = weight_bytes(*type, values);
    ASSERT_LE(at + 8 + bytes + 4 * values, file.size());
    // From an odd address too: nothing promises a block's alignment.
    std::vector<uint8_t> data(file.begin() + at + 8, file.begin() + at + 8 + bytes);
    data.insert(data.begin(), 0xAA);
    std::vector<float> decoded(values + 1, 1234.5f);
    decode_weights(*type, data.data() + 1, values, decoded.data());
    for (size_t i = 0; i < values; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), read_u32(file, at + 8 + bytes + 4 * i))
          << weight_type_info(*type).name << " value " << i << " is " << decoded[i];
    }
    EXPECT_EQ(decoded[values], 1234.5f) << "written past the end";
    EXPECT_TRUE(seen.insert(*type).second);
    at += 8 + bytes + 4 * values;
  }
  EXPECT_EQ(seen.size(), std::size(all_types)) << "a type has no reference values";
}

TEST(WeightBlocks, StructsHaveTheSizesOfTheList) {
  const auto bytes = [](WeightType type) {
    return static_cast<size_t>(weight_type_info(type).block_bytes);
  };
  EXPECT_EQ(sizeof(BlockQ4_0), bytes(WeightType::Q4_0));
  EXPECT_EQ(sizeof(BlockQ4_1), bytes(WeightType::Q4_1));
  EXPECT_EQ(sizeof(BlockQ5_0), bytes(WeightType::Q5_0));
  EXPECT_EQ(sizeof(BlockQ5_1), bytes(WeightType::Q5_1));
  EXPECT_EQ(sizeof(BlockQ8_0), bytes(WeightType::Q8_0));
  EXPECT_EQ(sizeof(BlockQ4_K), bytes(WeightType::Q4_K));
  EXPECT_EQ(sizeof(BlockQ5_K), bytes(WeightType::Q5_K));
  EXPECT_EQ(sizeof(BlockQ6_K), bytes(WeightType::Q6_K));
  EXPECT_EQ(sizeof(BlockQ2_K), bytes(WeightType::Q2_K));
  EXPECT_EQ(sizeof(BlockQ3_K), bytes(WeightType::Q3_K));
  EXPECT_EQ(sizeof(BlockIQ4_NL), bytes(WeightType::IQ4_NL));
  EXPECT_EQ(sizeof(BlockIQ4_XS), bytes(WeightType::IQ4_XS));
  EXPECT_EQ(sizeof(BlockMXFP4), bytes(WeightType::MXFP4));
}

TEST(WeightBlocks, NoValuesIsNothing) {
  for (const WeightType type : all_types) decode_weights(type, nullptr, 0, nullptr);
}

TEST(WeightBlocksDeathTest, PartOfABlockIsOurBug) {
  const std::vector<uint8_t> data(64);
  std::vector<float> out(64);
  EXPECT_DEATH(decode_weights(WeightType::Q4_0, data.data(), 33, out.data()), "33 values");
}

TEST(WeightTypes, NamesOfEveryIdOfTheFormat) {
  std::set<std::string_view> names;
  for (uint32_t id = 0; id <= 41; ++id) {
    const std::string_view name = stored_type_name(id);
    EXPECT_FALSE(name.empty()) << id;
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
  }
  EXPECT_EQ(stored_type_name(16), "IQ2_XXS");
  EXPECT_EQ(stored_type_name(12), "Q4_K");
  EXPECT_EQ(stored_type_name(42), "");
  EXPECT_EQ(stored_type_name(1000), "");
  EXPECT_EQ(stored_type_name(0xFFFFFFFFu), "");
}

TEST(WeightTypes, OnlyTheListIsRead) {
  size_t read = 0;
  for (uint32_t id = 0; id < 2000; ++id) read += weight_type_from_id(id).has_value() ? 1 : 0;
  EXPECT_EQ(read, std::size(all_types));
  for (const WeightType type : all_types) {
    EXPECT_EQ(weight_type_from_id(static_cast<uint32_t>(type)), type);
    EXPECT_NE(supported_weight_types().find(weight_type_info(type).name), std::string::npos);
  }
}

}  // namespace
}  // namespace kvart
