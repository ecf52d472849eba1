// ModelConfig from an open GGUF file or from the text of a config.json.
#pragma once

#include <string>
#include <string_view>

#include "kvart/model_config.h"
#include "model/file/gguf.h"

namespace kvart {

Result<ModelConfig> config_from_gguf(const GgufFile& file);

// text: of a config.json; source: its path, for messages. weight_bytes is set from the parameter
// count where that is known.
Result<ModelConfig> config_from_json(std::string_view text, const std::string& source);

}  // namespace kvart
