// Weights of any type with random codes, for tests of the matrix product.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/half.h"
#include "model/file/weight_blocks.h"

namespace kvart {

inline const std::vector<WeightType>& all_weight_types() {
  static const std::vector<WeightType> types = {
#define KVART_ENTRY(name, id, values, bytes) WeightType::name,
      KVART_WEIGHT_TYPES(KVART_ENTRY)
#undef KVART_ENTRY
  };
  return types;
}

inline std::vector<float> random_floats(size_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Every bit of a block is random but its f16 scale and minimum, which are numbers of use.
template <class Block>
std::vector<uint8_t> random_blocks(size_t count, std::mt19937& random) {
  std::uniform_real_distribution<float> scale(-0.02f, 0.02f);
  std::vector<uint8_t> bytes(count * sizeof(Block));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t i = 0; i < count; ++i) {
    Block block;
    std::memcpy(&block, bytes.data() + i * sizeof block, sizeof block);
    if constexpr (requires { block.scale; }) block.scale = f32_to_f16(scale(random));
    if constexpr (requires { block.exponent; }) {
      block.exponent = static_cast<uint8_t>(118 + random() % 8);
    }
    if constexpr (requires { block.minimum; }) block.minimum = f32_to_f16(scale(random));
    std::memcpy(bytes.data() + i * sizeof block, &block, sizeof block);
  }
  return bytes;
}

// The bytes of rows · columns weights, as a file holds them.
inline std::vector<uint8_t> random_weights(WeightType type, int64_t rows, int64_t columns,
                                           uint32_t seed) {
  std::mt19937 random(seed);
  const auto count = static_cast<size_t>(rows * columns);
  const size_t blocks = count / static_cast<size_t>(weight_type_info(type).block_values);
  const std::vector<float> values = random_floats(count, seed, 0.05f);
  std::vector<uint8_t> bytes(weight_bytes(type, count));
  switch (type) {
    case WeightType::F32:
      std::memcpy(bytes.data(), values.data(), bytes.size());
      return bytes;
    case WeightType::F16:
    case WeightType::BF16:
      for (size_t i = 0; i < count; ++i) {
        const uint16_t half =
            type == WeightType::F16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
        std::memcpy(bytes.data() + 2 * i, &half, 2);
      }
      return bytes;
    case WeightType::Q4_0:
      return random_blocks<BlockQ4_0>(blocks, random);
    case WeightType::Q4_1:
      return random_blocks<BlockQ4_1>(blocks, random);
    case WeightType::Q5_0:
      return random_blocks<BlockQ5_0>(blocks, random);
    case WeightType::Q5_1:
      return random_blocks<BlockQ5_1>(blocks, random);
    case WeightType::Q8_0:
      return random_blocks<BlockQ8_0>(blocks, random);
    case WeightType::Q4_K:
      return random_blocks<BlockQ4_K>(blocks, random);
    case WeightType::Q5_K:
      return random_blocks<BlockQ5_K>(blocks, random);
    case WeightType::Q6_K:
      return random_blocks<BlockQ6_K>(blocks, random);
    case WeightType::Q2_K:
      return random_blocks<BlockQ2_K>(blocks, random);
    case WeightType::Q3_K:
      return random_blocks<BlockQ3_K>(blocks, random);
    case WeightType::IQ4_NL:
      return random_blocks<BlockIQ4_NL>(blocks, random);
    case WeightType::IQ4_XS:
      return random_blocks<BlockIQ4_XS>(blocks, random);
    case WeightType::MXFP4:
      return random_blocks<BlockMXFP4>(blocks, random);
  }
  return bytes;
}

}  // namespace kvart
