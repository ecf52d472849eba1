// The checks of a vocabulary, and the tables that a model is made of.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer_encoder.h"

namespace kvart::text {

// A name under which published vocabularies keep a token that ends an answer.
bool is_end_name(std::string_view name);

// Lists' lengths, types and ids. The messages name GGUF's keys.
Status check_vocabulary(const TokenizerData& data);

std::vector<TokenType> read_types(const TokenizerData& data);

// The model: from pieces (in bytes if `of_bytes`) to ids. Refused: a token twice, a merge that
// isn't of two known tokens to a third, scores missing or not finite.
Result<std::unique_ptr<const PieceEncoder>> make_encoder(const TokenizerData& data,
                                                         const std::vector<TokenType>& types,
                                                         const ModelOptions& options,
                                                         bool of_bytes);

// What the token stands for, appended; false where the decoder's replacements are too much work.
bool append_token_bytes(std::string_view token, TokenType type, const DecoderOptions& decoder,
                        EncodeWork& work, std::string& out);

}  // namespace kvart::text
