// What differs between the families that the forward pass runs: one row each.
#pragma once

#include <string_view>

#include "model/ops/ops.h"

namespace kvart {

struct Architecture {
  std::string_view name;  // as GGUF's general.architecture has it
  RopePairing gguf_pairing =
      RopePairing::halves;  // `adjacent`: its GGUF files hold Q and K rows so
  Activation activation = Activation::silu;
  bool qkv_bias = false;           // Q, K and V have biases; others may
  bool head_norms = false;         // each head of Q and K is normalized before it is turned
  bool post_norms = false;         // what a block computes is normalized before it is added
  bool scaled_embedding = false;   // by sqrt(hidden)
  bool norms_plus_one = false;     // checkpoints hold the norms' weights less 1 (GGUF files whole)
  bool fused_projections = false;  // Q, K and V are one matrix; gate and up are one matrix
  bool mixture = false;            // of experts, in every layer
  int no_rope_every = 0;           // every n-th layer isn't turned; 0: all are
};

inline constexpr Architecture architectures[] = {
    {.name = "llama", .gguf_pairing = RopePairing::adjacent},
    {.name = "mistral", .gguf_pairing = RopePairing::adjacent},
    {.name = "qwen2", .qkv_bias = true},
    {.name = "qwen3", .head_norms = true},
    {.name = "qwen3moe", .head_norms = true, .mixture = true},
    {.name = "gemma2",
     .activation = Activation::gelu_tanh,
     .post_norms = true,
     .scaled_embedding = true,
     .norms_plus_one = true},
    {.name = "gemma3",
     .activation = Activation::gelu_tanh,
     .head_norms = true,
     .post_norms = true,
     .scaled_embedding = true,
     .norms_plus_one = true},
    {.name = "phi3", .fused_projections = true},
    {.name = "smollm3", .gguf_pairing = RopePairing::adjacent, .no_rope_every = 4},
};

// Null for one that isn't in the table.
constexpr const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& row : architectures) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace kvart
