// The vocabulary and the pipeline in a tokenizer.json.
#pragma once

#include <string>

#include "kvart/result.h"
#include "model/text/tokenizer.h"

namespace kvart {

// tokenizer_json: the text of a tokenizer.json. tokenizer_config_json: that of the
// tokenizer_config.json beside it, which names BOS, EOS and padding, or empty. name: the first
// one's path, for messages. Error: text that isn't JSON, or nested too deep; a part that is missing
// or of a wrong type; a model, a step or an option of one that Kvart doesn't know, by field and
// value. The vocabulary's sense is checked by Tokenizer::create.
Result<TokenizerData> tokenizer_data_from_json(const std::string& tokenizer_json,
                                               const std::string& tokenizer_config_json,
                                               const std::string& name);

}  // namespace kvart
