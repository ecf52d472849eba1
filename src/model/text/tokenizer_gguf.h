// The vocabulary in a GGUF file's metadata.
#pragma once

#include "kvart/result.h"
#include "model/file/gguf.h"
#include "model/text/tokenizer.h"

namespace kvart {

// Reads tokenizer.ggml.*; optional keys may be missing. The values' sense is checked by
// Tokenizer::create.
Result<TokenizerData> tokenizer_data_from_gguf(const GgufFile& file);

}  // namespace kvart
