// Names of weight types: see weight_type.h.
#include "model/file/weight_type.h"

#include <array>

namespace kvart {

namespace {

struct NamedId {
  uint32_t id;
  std::string_view name;
};

// Ids that files carry and Kvart doesn't read. Those that the format itself has withdrawn are here
// too, because old files with them are still around.
constexpr std::array unread_types = {
    NamedId{4, "Q4_2"},        NamedId{5, "Q4_3"},        NamedId{9, "Q8_1"},
    NamedId{15, "Q8_K"},       NamedId{16, "IQ2_XXS"},    NamedId{17, "IQ2_XS"},
    NamedId{18, "IQ3_XXS"},    NamedId{19, "IQ1_S"},      NamedId{21, "IQ3_S"},
    NamedId{22, "IQ2_S"},      NamedId{24, "I8"},         NamedId{25, "I16"},
    NamedId{26, "I32"},        NamedId{27, "I64"},        NamedId{28, "F64"},
    NamedId{29, "IQ1_M"},      NamedId{31, "Q4_0_4_4"},   NamedId{32, "Q4_0_4_8"},
    NamedId{33, "Q4_0_8_8"},   NamedId{34, "TQ1_0"},      NamedId{35, "TQ2_0"},
    NamedId{36, "IQ4_NL_4_4"}, NamedId{37, "IQ4_NL_4_8"}, NamedId{38, "IQ4_NL_8_8"},
    NamedId{40, "NVFP4"},      NamedId{41, "Q1_0"},
};

}  // namespace

std::optional<WeightType> weight_type_from_id(uint32_t id) {
  switch (id) {
#define KVART_CASE(name, id_of_type, values, bytes) case id_of_type:
    KVART_WEIGHT_TYPES(KVART_CASE)
#undef KVART_CASE
    return static_cast<WeightType>(id);
    default:
      return std::nullopt;
  }
}

std::string_view stored_type_name(uint32_t id) {
  if (const auto type = weight_type_from_id(id)) return weight_type_info(*type).name;
  for (const NamedId& entry : unread_types) {
    if (entry.id == id) return entry.name;
  }
  return {};
}

std::string supported_weight_types() {
  std::string names;
#define KVART_APPEND(name, id, values, bytes) names += names.empty() ? #name : ", " #name;
  KVART_WEIGHT_TYPES(KVART_APPEND)
#undef KVART_APPEND
  return names;
}

}  // namespace kvart
