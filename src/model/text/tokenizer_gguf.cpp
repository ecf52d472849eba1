// Reads tokenizer.ggml.* with each key's type checked.
#include "model/text/tokenizer_gguf.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

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

}  // namespace

Result<TokenizerData> tokenizer_data_from_gguf(const GgufFile& file) {
  TokenizerData data;
  KVART_RETURN_IF_ERROR(read_string(file, "tokenizer.ggml.model", data.model));
  // Other tokenizers have no merges and may have no `pre`; create() refuses them by name.
  if (data.model != "gpt2") return data;
  KVART_RETURN_IF_ERROR(read_string(file, "tokenizer.ggml.pre", data.pre));
  KVART_RETURN_IF_ERROR(read_strings(file, "tokenizer.ggml.tokens", data.tokens));
  KVART_RETURN_IF_ERROR(read_strings(file, "tokenizer.ggml.merges", data.merges));
  if (file.has("tokenizer.ggml.token_type")) {
    auto types = file.get_i32s("tokenizer.ggml.token_type");
    if (!types) return types.error();
    data.token_types = std::move(*types);
    if (data.token_types.size() != data.tokens.size()) {
      return Error{ErrorCode::invalid_file,
                   fmt::format("{}: tokenizer.ggml.token_type: {} entries; expected {}, one for "
                               "each token",
                               file.name(), data.token_types.size(), data.tokens.size())};
    }
  }
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.bos_token_id", data.bos));
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.eos_token_id", data.eos));
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.eot_token_id", data.eot));
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.unknown_token_id", data.unk));
  KVART_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.padding_token_id", data.pad));
  KVART_RETURN_IF_ERROR(read_flag(file, "tokenizer.ggml.add_bos_token", data.add_bos));
  KVART_RETURN_IF_ERROR(read_flag(file, "tokenizer.ggml.add_eos_token", data.add_eos));
  KVART_RETURN_IF_ERROR(read_flag(file, "tokenizer.ggml.add_space_prefix", data.add_space_prefix));
  return data;
}

}  // namespace kvart
