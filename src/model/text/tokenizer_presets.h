// The pipelines that GGUF metadata only names: one table row is one pre-tokenizer.
#pragma once

#include <string_view>

#include "kvart/result.h"
#include "model/text/tokenizer.h"

namespace kvart::text {

// Of tokenizer.ggml.model and .pre and the flags beside them. An unknown name is refused with a
// list of the known ones.
Result<TokenizerPipeline> preset_pipeline(const TokenizerData& data);

// Whether text of this model and pre-tokenizer begins with BOS (ends with EOS) where the metadata
// doesn't say.
bool adds_bos_by_default(std::string_view model, std::string_view pre);
bool adds_eos_by_default(std::string_view model);

// The pattern of GPT-2's byte-level pre-tokenizer.
extern const std::string_view gpt2_pattern;

}  // namespace kvart::text
