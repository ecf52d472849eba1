// ModelConfig from an open GGUF file or from the text of a config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvart/model_config.h"
#include "model/file/gguf.h"
#include "model/tensor_table.h"

namespace kvart {

inline constexpr uint64_t max_config_bytes = 16 << 20;  // of a config.json

// file: with the metadata; tensors: those of all parts of the model.
Result<ModelConfig> config_from_gguf(const GgufFile& file, const TensorTable& tensors);

// text: of a config.json; source: its path, for messages. weight_bytes is set from the parameter
// count where that is known.
Result<ModelConfig> config_from_json(std::string_view text, const std::string& source);

}  // namespace kvart
