// The types that a weight tensor can be stored in: those that Kvart reads, and the names of those
// that it refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvart {

// The one list of weight types that Kvart reads: name, id in a GGUF file, values of a block, bytes
// of a block. The decoder of each (weight_blocks.cpp) is made from this list; one that is missing
// is a compile error.
#define KVART_WEIGHT_TYPES(X) \
  X(F32, 0, 1, 4)             \
  X(F16, 1, 1, 2)             \
  X(Q4_0, 2, 32, 18)          \
  X(Q4_1, 3, 32, 20)          \
  X(Q5_0, 6, 32, 22)          \
  X(Q5_1, 7, 32, 24)          \
  X(Q8_0, 8, 32, 34)          \
  X(Q2_K, 10, 256, 84)        \
  X(Q3_K, 11, 256, 110)       \
  X(Q4_K, 12, 256, 144)       \
  X(Q5_K, 13, 256, 176)       \
  X(Q6_K, 14, 256, 210)       \
  X(IQ4_NL, 20, 32, 18)       \
  X(IQ4_XS, 23, 256, 136)     \
  X(BF16, 30, 1, 2)           \
  X(MXFP4, 39, 32, 17)

// The enumerator's value is the id in a GGUF file.
enum class WeightType : uint32_t {
#define KVART_ENUMERATOR(name, id, values, bytes) name = (id),
  KVART_WEIGHT_TYPES(KVART_ENUMERATOR)
#undef KVART_ENUMERATOR
};

struct WeightTypeInfo {
  std::string_view name;
  int block_values = 0;
  int block_bytes = 0;
};

constexpr WeightTypeInfo weight_type_info(WeightType type) {
  switch (type) {
#define KVART_CASE(name, id, values, bytes) \
  case WeightType::name:                    \
    return {#name, values, bytes};
    KVART_WEIGHT_TYPES(KVART_CASE)
#undef KVART_CASE
  }
  return {};  // unreachable: a WeightType is only made from the list
}

// Bytes of `values` values. Precondition: values is a multiple of the type's block.
constexpr size_t weight_bytes(WeightType type, size_t values) {
  const WeightTypeInfo info = weight_type_info(type);
  return values / static_cast<size_t>(info.block_values) * static_cast<size_t>(info.block_bytes);
}

// The type with this id in a GGUF file; nothing if Kvart doesn't read it.
std::optional<WeightType> weight_type_from_id(uint32_t id);

// The name of any type that a GGUF file may name, read by Kvart or not ("IQ2_XXS"); empty for an
// unknown id.
std::string_view stored_type_name(uint32_t id);

// "F32, F16, ...": for messages.
std::string supported_weight_types();

}  // namespace kvart
