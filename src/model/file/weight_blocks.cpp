// Plain decoders of weight blocks: slow, obvious, and the oracle of the fast ones.
#include "model/file/weight_blocks.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"

namespace kvart {

static_assert(std::endian::native == std::endian::little, "the blocks are read as they lie");

namespace {

// decode(block bytes, out): one block of the type to block_values floats. No general definition: a
// type in the list without a specialization doesn't compile.
template <WeightType type>
struct Decoder;

template <class Block>
Block load(const uint8_t* data) {
  Block block;
  std::memcpy(&block, data, sizeof(block));
  return block;
}

// Code j (0..31) of a block of 32 with 4 bits a code.
int code4(const uint8_t (&codes)[16], int j) {
  return j < 16 ? codes[j] & 15 : codes[j - 16] >> 4;
}

// Code j of a block of 32 with 5 bits a code.
int code5(const uint8_t (&codes)[16], const uint8_t (&high_bits)[4], int j) {
  return code4(codes, j) | (high_bits[j / 8] >> (j % 8) & 1) << 4;
}

// Code j (0..31) of group g (0..7) of a block of 256: its low four bits.
int group_code4(const uint8_t (&codes)[128], int g, int j) {
  const int byte = codes[32 * (g / 2) + j];
  return g % 2 == 0 ? byte & 15 : byte >> 4;
}

template <>
struct Decoder<WeightType::F32> {
  static void decode(const uint8_t* data, float* out) { *out = load<float>(data); }
};

template <>
struct Decoder<WeightType::F16> {
  static void decode(const uint8_t* data, float* out) { *out = f16_to_f32(load<uint16_t>(data)); }
};

template <>
struct Decoder<WeightType::BF16> {
  static void decode(const uint8_t* data, float* out) { *out = bf16_to_f32(load<uint16_t>(data)); }
};

template <>
struct Decoder<WeightType::Q4_0> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ4_0>(data);
    const float scale = f16_to_f32(block.scale);
    for (int j = 0; j < 32; ++j) out[j] = scale * static_cast<float>(code4(block.codes, j) - 8);
  }
};

template <>
struct Decoder<WeightType::Q4_1> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ4_1>(data);
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int j = 0; j < 32; ++j) {
      out[j] = scale * static_cast<float>(code4(block.codes, j)) + minimum;
    }
  }
};

template <>
struct Decoder<WeightType::Q5_0> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ5_0>(data);
    const float scale = f16_to_f32(block.scale);
    for (int j = 0; j < 32; ++j) {
      out[j] = scale * static_cast<float>(code5(block.codes, block.high_bits, j) - 16);
    }
  }
};

template <>
struct Decoder<WeightType::Q5_1> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ5_1>(data);
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int j = 0; j < 32; ++j) {
      out[j] = scale * static_cast<float>(code5(block.codes, block.high_bits, j)) + minimum;
    }
  }
};

template <>
struct Decoder<WeightType::Q8_0> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ8_0>(data);
    const float scale = f16_to_f32(block.scale);
    for (int j = 0; j < 32; ++j) out[j] = scale * static_cast<float>(block.codes[j]);
  }
};

template <>
struct Decoder<WeightType::Q4_K> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ4_K>(data);
    for (int g = 0; g < 8; ++g) {
      const GroupScale group = unpack_group_scale(block.scales, g);
      const float scale = f16_to_f32(block.scale) * static_cast<float>(group.scale);
      const float minimum = f16_to_f32(block.minimum) * static_cast<float>(group.minimum);
      for (int j = 0; j < 32; ++j) {
        out[32 * g + j] = scale * static_cast<float>(group_code4(block.codes, g, j)) - minimum;
      }
    }
  }
};

template <>
struct Decoder<WeightType::Q5_K> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ5_K>(data);
    for (int g = 0; g < 8; ++g) {
      const GroupScale group = unpack_group_scale(block.scales, g);
      const float scale = f16_to_f32(block.scale) * static_cast<float>(group.scale);
      const float minimum = f16_to_f32(block.minimum) * static_cast<float>(group.minimum);
      for (int j = 0; j < 32; ++j) {
        const int code = group_code4(block.codes, g, j) | (block.high_bits[j] >> g & 1) << 4;
        out[32 * g + j] = scale * static_cast<float>(code) - minimum;
      }
    }
  }
};

template <>
struct Decoder<WeightType::Q6_K> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ6_K>(data);
    for (int i = 0; i < 256; ++i) {
      const int half = i / 128;
      const int part = i / 16;
      const auto scale_code = static_cast<float>(block.scales[part]);
      const int group = i / 32 % 4;
      const int j = i % 32;
      const int low_byte = block.low_bits[64 * half + 32 * (group % 2) + j];
      const int low = group < 2 ? low_byte & 15 : low_byte >> 4;
      const int high = block.high_bits[32 * half + j] >> (2 * group) & 3;
      const float scale = f16_to_f32(block.scale) * scale_code;
      out[i] = scale * static_cast<float>((low | high << 4) - 32);
    }
  }
};

template <>
struct Decoder<WeightType::Q2_K> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ2_K>(data);
    for (int i = 0; i < 256; ++i) {
      const int steps = block.scales[i / 16];
      const float scale = f16_to_f32(block.scale) * static_cast<float>(steps & 15);
      const float minimum = f16_to_f32(block.minimum) * static_cast<float>(steps >> 4);
      const int code = block.codes[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
      out[i] = scale * static_cast<float>(code) - minimum;
    }
  }
};

template <>
struct Decoder<WeightType::Q3_K> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockQ3_K>(data);
    for (int i = 0; i < 256; ++i) {
      const int low = block.codes[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
      const int high = block.high_bits[i % 32] >> (i / 32) & 1;
      const auto steps = static_cast<float>(unpack_q3_scale(block.scales, i / 16));
      const float scale = f16_to_f32(block.scale) * steps;
      out[i] = scale * static_cast<float>((low | high << 2) - 4);
    }
  }
};

template <>
struct Decoder<WeightType::IQ4_NL> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockIQ4_NL>(data);
    const float scale = f16_to_f32(block.scale);
    for (int j = 0; j < 32; ++j) {
      out[j] = scale * static_cast<float>(iq4_values[code4(block.codes, j)]);
    }
  }
};

template <>
struct Decoder<WeightType::IQ4_XS> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockIQ4_XS>(data);
    for (int i = 0; i < 256; ++i) {
      const int byte = block.codes[16 * (i / 32) + i % 16];
      const int code = i % 32 < 16 ? byte & 15 : byte >> 4;
      const auto steps = static_cast<float>(unpack_iq4_scale(block, i / 32));
      const float scale = f16_to_f32(block.scale) * steps;
      out[i] = scale * static_cast<float>(iq4_values[code]);
    }
  }
};

template <>
struct Decoder<WeightType::MXFP4> {
  static void decode(const uint8_t* data, float* out) {
    const auto block = load<BlockMXFP4>(data);
    const float scale = std::ldexp(1.0f, block.exponent - 128);
    for (int j = 0; j < 32; ++j) {
      out[j] = scale * static_cast<float>(mxfp4_values[code4(block.codes, j)]);
    }
  }
};

template <WeightType type>
void decode_blocks(const uint8_t* data, size_t values, float* out) {
  constexpr WeightTypeInfo info = weight_type_info(type);
  KVART_CHECK(values % info.block_values == 0, "%zu values in blocks of %d", values,
              info.block_values);
  for (size_t i = 0; i < values; i += info.block_values, data += info.block_bytes) {
    Decoder<type>::decode(data, out + i);
  }
}

}  // namespace

void decode_weights(WeightType type, const uint8_t* data, size_t values, float* out) {
  switch (type) {
#define KVART_CASE(name, id, block_values, block_bytes) \
  case WeightType::name:                                \
    return decode_blocks<WeightType::name>(data, values, out);
    KVART_WEIGHT_TYPES(KVART_CASE)
#undef KVART_CASE
  }
  KVART_CHECK(false, "weight type %u", static_cast<unsigned>(type));
}

}  // namespace kvart
