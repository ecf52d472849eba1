// MODEL on the command line: a GGUF file (or a part of a split one), a config.json or its folder,
// or the name of a built-in shape.
#pragma once

#include <cstdint>
#include <string>

#include "kvart/memory_plan.h"
#include "kvart/result.h"

namespace kvart::tools {

struct ModelSource {
  std::string name;
  std::string what;  // one line about the shape
  std::string note;  // what else the name could have meant; may be empty
  CacheShape shape;
  int64_t context_length = 0;  // 0: not given
  uint64_t weight_bytes = 0;   // 0: not known
  std::string weight_basis;    // where weight_bytes comes from
};

Result<ModelSource> find_model(const std::string& model);

// KV heads of the layers: "8", or "2 to 8" where they differ.
std::string heads_text(const CacheShape& shape);

extern const char* const model_help;

}  // namespace kvart::tools
