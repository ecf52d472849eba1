// Fuzz target of tokenizers: any text as a tokenizer.json ends in a result or an error, and
// whatever was accepted encodes and decodes any bytes. Input: a tokenizer.json, then, after a byte
// 0xFF (which no JSON has), the bytes to encode. An empty document stands for a small vocabulary of
// each kind.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer_json.h"
#include "model/text/tokenizer_utf8.h"

namespace {

using kvart::Tokenizer;
using kvart::TokenizerData;

void check_encoding(const Tokenizer& tokenizer, std::optional<int32_t> unknown,
                    std::string_view text) {
  for (const auto special : {kvart::SpecialTokens::plain, kvart::SpecialTokens::parse}) {
    const auto encoded = tokenizer.encode(text, special);
    if (!encoded.ok()) {
      KVART_CHECK(!encoded.error().message.empty());
      continue;
    }
    const std::vector<int32_t>& ids = *encoded;
    kvart::StreamDecoder decoder(tokenizer, kvart::ControlTokens::show);
    std::string joined;
    for (const int32_t id : ids) {
      KVART_CHECK(id >= 0 && id < tokenizer.vocab_size(), "%d", id);
      KVART_CHECK(tokenizer.type(id) != kvart::TokenType::unused, "%d", id);
      if (special == kvart::SpecialTokens::plain) {
        // What isn't in the vocabulary may become the unknown token, but never an end.
        const bool control = tokenizer.type(id) == kvart::TokenType::control;
        KVART_CHECK(!control || (id == unknown && !tokenizer.is_end_of_generation(id)), "%d", id);
      }
      joined += decoder.push(id);
    }
    joined += decoder.flush();
    KVART_CHECK(joined == tokenizer.decode(ids, kvart::ControlTokens::show));
    std::string valid;
    KVART_CHECK(kvart::text::append_repaired(joined, valid) == 0 && valid == joined);
  }
}

// All bytes in the byte alphabet or under their names, a few tokens more, for a model that GGUF
// names.
TokenizerData small_vocabulary(const std::string& model, const std::string& pre) {
  TokenizerData data;
  data.model = model;
  data.pre = pre;
  data.unk = 0;
  data.bos = 1;
  const auto add = [&](const std::string& token, kvart::TokenType type) {
    data.tokens.push_back(token);
    data.token_types.push_back(static_cast<int32_t>(type));
    data.scores.push_back(-static_cast<float>(data.tokens.size() % 7));
  };
  add("<unk>", kvart::TokenType::unknown);
  add("<s>", kvart::TokenType::control);
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string symbol;
    if (model == "gpt2") {
      kvart::text::append_utf8(kvart::text::byte_symbols[byte], symbol);
      add(symbol, kvart::TokenType::normal);
    } else {
      const char* digits = "0123456789ABCDEF";
      symbol = std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">";
      add(symbol, kvart::TokenType::byte);
    }
  }
  for (const char* token : {"\u2581", "日", "th", "the", "  ", "12", "\n\n"}) {
    add(token, kvart::TokenType::normal);
  }
  add("<user>", kvart::TokenType::user_defined);
  if (model == "gpt2") data.merges = {"t h", "th e", "1 2"};
  data.add_space_prefix = model == "llama" || model == "t5";
  return data;
}

void check_small_vocabularies(std::string_view text) {
  for (const auto& [model, pre] :
       {std::pair{"gpt2", "gpt-2"}, std::pair{"gpt2", "llama-bpe"},
        std::pair{"gpt2", "deepseek-llm"}, std::pair{"gpt2", "tekken"}, std::pair{"llama", ""},
        std::pair{"t5", ""}, std::pair{"gemma4", ""}}) {
    const auto tokenizer = Tokenizer::create(small_vocabulary(model, pre));
    KVART_CHECK(tokenizer.ok(), "%s", tokenizer.error().message.c_str());
    check_encoding(*tokenizer, 0, text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\xFF');
  const std::string document(input.substr(0, end));
  const std::string_view text =
      end == input.npos ? "<s>the 日é\n\n 12 <user>" : input.substr(end + 1);
  if (document.empty()) {
    check_small_vocabularies(text);
    return 0;
  }
  const auto read = kvart::tokenizer_data_from_json(document, "", "t.json");
  if (!read.ok()) {
    KVART_CHECK(!read.error().message.empty());
    return 0;
  }
  const auto tokenizer = Tokenizer::create(*read);
  if (tokenizer.ok()) check_encoding(*tokenizer, read->unk, text);
  return 0;
}
