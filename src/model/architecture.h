// What differs between architectures that the forward pass runs: one row each.
#pragma once

#include <string_view>

#include "model/ops/ops.h"

namespace kvart {

struct Architecture {
  std::string_view name;  // as GGUF's general.architecture has it
  RopePairing pairing;
};

inline constexpr Architecture architectures[] = {
    {"llama", RopePairing::adjacent},  // its GGUF files hold Q and K rows permuted so
    {"qwen2", RopePairing::halves},
};

// Null for one that isn't in the table.
constexpr const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& row : architectures) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace kvart
