// Shapes of common open models, built in, so that a plan needs no file.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kvart/memory_plan.h"
#include "kvart/result.h"

namespace kvart::tools {

struct ModelShape {
  std::string_view name;
  int layers;
  int hidden;
  int ffn;
  int q_heads;
  int kv_heads;
  int head_dim;
  int vocab;
  bool tied_embeddings;
  double parameters_billion;  // as published; rounded as the makers do
  int64_t context_length;
  int window = 0;      // 0: every layer sees all tokens
  int full_every = 0;  // with a window: every n-th layer sees all tokens; 0: none does

  [[nodiscard]] CacheShape cache_shape() const;
  // From the sizes of the matrices: a check of the published count.
  [[nodiscard]] double computed_parameters() const;
};

std::span<const ModelShape> model_shapes();

// By name, whatever its case, hyphens, owner ("meta-llama/...") and an ending such as -Instruct.
// Error: lists the names.
Result<ModelShape> find_model_shape(std::string_view name);

}  // namespace kvart::tools
