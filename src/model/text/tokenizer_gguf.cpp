// Reads tokenizer.ggml.* with each key's type checked.
#include "model/text/tokenizer_gguf.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>
#include <utility>

#include "model/text/tokenizer_presets.h"

namespace kvart {
namespace {

Status read_id(const GgufFile& file, const char* key, std::optional<int32_t>& out) {
  if (!file.has(key)) return {};
  const auto value = file.get_u32(key);
  if (!value) return value.error();
  if (*value > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: {}: {} isn't a token id", file.name(), key, *value)};
  }
  out = static_cast<int32_t>(*value);
  return {};
}

Status read_flag(const GgufFile& file, const char* key, bool& out) {
  if (!file.has(key)) return {};
  const auto value = file.get_bool(key);
  if (!value) return value.error();
  out = *value;
  return {};
}

Status read_string(const GgufFile& file, const char* key, std::string& out) {
  auto value = file.get_string(key);
  if (!value) return value.error();
  out = std::move(*value);
  return {};
}

Status read_strings(const GgufFile& file, const char* key, std::vector<std::string>& out) {
  const auto values = file.get_strings(key);
  if (!values) return values.error();
  out.assign(values->begin(), values->end());
  return {};
}

// The list `values` has one entry for each token, or the key is missing.
template <class Value>
Status check_count(const GgufFile& file, const char* key, const std::vector<Value>& values,
                   const TokenizerData& data) {
  if (values.size() == data.tokens.size()) return {};
  return Error{ErrorCode::invalid_file,
               fmt::format("{}: {}: {} entries; expected {}, one for each token", file.name(), key,
                           values.size(), data.tokens.size())};
}

Status read_lists(const GgufFile& file, TokenizerData& data) {
  KVART_RETURN_IF_ERROR(read_strings(file, "tokenizer.ggml.tokens", data.tokens));
  if (data.model == "gpt2" || data.model == "gemma4") {
    KVART_RETURN_IF_ERROR(read_strings(file, "tokenizer.ggml.merges", data.merges));
  }
  constexpr const char* type_key = "tokenizer.ggml.token_type";
  if (file.has(type_key)) {
    auto types = file.get_i32s(type_key);
    if (!types) return types.error();
    data.token_types = std::move(*types);
    KVART_RETURN_IF_ERROR(check_count(file, type_key, data.token_types, data));
  }
  constexpr const char* score_key = "tokenizer.ggml.scores";
  if (data.model == "llama" || data.model == "t5") {
    auto scores = file.get_f32s(score_key);
    if (!scores) return scores.error();
    data.scores = std::move(*scores);
    KVART_RETURN_IF_ERROR(check_count(file, score_key, data.scores, data));
  }
  return {};
}

// The map is an array of bytes, signed or not.
Status read_charsmap(const GgufFile& file, std::string& out) {
  constexpr std::string_view key = "tokenizer.ggml.precompiled_charsmap";
  for (const GgufEntry& entry : file.entries()) {
    if (entry.key != key) continue;
    const bool bytes =
        entry.type == GgufValueType::array &&
        (entry.element_type == GgufValueType::u8 || entry.element_type == GgufValueType::i8);
    if (!bytes) {
      return Error{ErrorCode::invalid_file, fmt::format("{}: {}: {}; expected an array of u8 or i8",
                                                        file.name(), key, gguf_type_name(entry))};
    }
    out.assign(entry.bytes.begin(), entry.bytes.end());
  }
  return {};
}

// The ids and flags that older files leave out.
void set_defaults(TokenizerData& data) {
  const auto set = [&](std::optional<int32_t>& id, int32_t value) {
    if (static_cast<size_t>(value) < data.tokens.size()) id = value;
  };
  if (data.model == "llama") {
    set(data.unk, 0);
    set(data.bos, 1);
    set(data.eos, 2);
  } else if (data.model == "t5") {
    set(data.pad, 0);
    set(data.eos, 1);
    set(data.unk, 2);
  }
  data.add_space_prefix = data.model == "llama" || data.model == "t5";
  data.remove_extra_whitespaces = data.model == "t5";
}

}  // namespace

Result<TokenizerData> tokenizer_data_from_gguf(const GgufFile& file) {
  TokenizerData data;
  data.source = file.name();
  KVART_RETURN_IF_ERROR(read_string(file, "tokenizer.ggml.model", data.model));
  // Other tokenizers may have other lists; create() refuses them by name.
  if (data.model != "gpt2" && data.model != "gemma4" && data.model != "llama" &&
      data.model != "t5") {
    return data;
  }
  if (data.model == "gpt2") {
    KVART_RETURN_IF_ERROR(read_string(file, "tokenizer.ggml.pre", data.pre));
  }
  KVART_RETURN_IF_ERROR(read_lists(file, data));
  KVART_RETURN_IF_ERROR(read_charsmap(file, data.charsmap));
  set_defaults(data);
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.bos_token_id", data.bos));
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.eos_token_id", data.eos));
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.eot_token_id", data.eot));
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.unknown_token_id", data.unk));
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.padding_token_id", data.pad));
  data.add_bos = data.bos && text::adds_bos_by_default(data.model, data.pre);
  data.add_eos = data.eos && text::adds_eos_by_default(data.model);
  KVART_RETURN_IF_ERROR(read_flag(file, "tokenizer.ggml.add_bos_token", data.add_bos));
  KVART_RETURN_IF_ERROR(read_flag(file, "tokenizer.ggml.add_eos_token", data.add_eos));
  KVART_RETURN_IF_ERROR(read_flag(file, "tokenizer.ggml.add_space_prefix", data.add_space_prefix));
  KVART_RETURN_IF_ERROR(
      read_flag(file, "tokenizer.ggml.remove_extra_whitespaces", data.remove_extra_whitespaces));
  return data;
}

}  // namespace kvart
