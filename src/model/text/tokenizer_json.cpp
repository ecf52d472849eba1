// Reading a tokenizer.json: model, vocabulary, merges, added tokens, and the configuration beside
// it.
#include "model/text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/file/json_text.h"
#include "model/file/printable.h"
#include "model/text/tokenizer_encoder.h"
#include "model/text/tokenizer_json_field.h"
#include "model/text/tokenizer_json_steps.h"

namespace kvart {
namespace {

using text::JsonField;
using text::no_token;

constexpr char merge_separator = '\xFF';  // in no valid UTF-8, so in no token

// Room for ids up to `last`, of a list that has `count` entries: gaps are few.
Status make_room(const JsonField& field, int64_t last, size_t count, TokenizerData& data) {
  const int64_t most = static_cast<int64_t>(std::min<size_t>(count, 1u << 30)) * 2 + 100'000;
  if (last < 0 || last > most) {
    return field.invalid(fmt::format("the id {} in a vocabulary of {} tokens", last, count));
  }
  const auto size = static_cast<size_t>(last) + 1;
  if (size > data.tokens.size()) {
    data.tokens.resize(size);
    data.token_types.resize(size, static_cast<int32_t>(TokenType::unused));
  }
  return {};
}

void put(TokenizerData& data, int64_t id, const std::string& text, TokenType type) {
  data.tokens[static_cast<size_t>(id)] = text;
  data.token_types[static_cast<size_t>(id)] = static_cast<int32_t>(type);
}

bool is_free(const TokenizerData& data, int64_t id) {
  return data.token_types[static_cast<size_t>(id)] == static_cast<int32_t>(TokenType::unused);
}

bool is_byte_name(std::string_view name) {
  return name.size() == 6 && name.substr(0, 3) == "<0x" && name[5] == '>' &&
         name.substr(3, 2).find_first_not_of("0123456789ABCDEF") == name.npos;
}

TokenType model_type(const std::string& name, bool byte_fallback) {
  return byte_fallback && is_byte_name(name) ? TokenType::byte : TokenType::normal;
}

Status read_vocabulary(const JsonField& field, bool byte_fallback, TokenizerData& data) {
  KVART_RETURN_IF_ERROR(field.check_object());
  const size_t count = field.value().size();
  for (const auto& [token, value] : field.value().items()) {
    const JsonField entry(value, data.source, "model.vocab['" + printable(token) + "']");
    const auto id = entry.get_integer();
    if (!id) return id.error();
    KVART_RETURN_IF_ERROR(make_room(entry, *id, count, data));
    if (!is_free(data, *id)) {
      return entry.invalid(fmt::format("the id {} is that of '{}' already", *id,
                                       printable(data.tokens[static_cast<size_t>(*id)])));
    }
    put(data, *id, token, model_type(token, byte_fallback));
  }
  return {};
}

Status read_scored_vocabulary(const JsonField& field, bool byte_fallback, TokenizerData& data) {
  KVART_RETURN_IF_ERROR(field.check_list());
  const auto& list = field.value();
  data.tokens.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const auto& entry = list[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return JsonField(entry, data.source, fmt::format("model.vocab[{}]", i))
          .invalid("expected a token and its score");
    }
    const auto& token = entry[0].get_ref<const std::string&>();
    data.tokens.push_back(token);
    data.token_types.push_back(static_cast<int32_t>(model_type(token, byte_fallback)));
    data.scores.push_back(static_cast<float>(entry[1].get<double>()));
  }
  return {};
}

// Either "left right" or ["left", "right"].
Status read_merges(const JsonField& field, TokenizerData& data) {
  KVART_RETURN_IF_ERROR(field.check_list());
  const auto& list = field.value();
  data.merge_separator = merge_separator;
  data.merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const auto& merge = list[i];
    const auto fail = [&] {
      return JsonField(merge, data.source, fmt::format("model.merges[{}]", i))
          .invalid("expected two tokens");
    };
    if (merge.is_array()) {
      if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return fail();
      data.merges.push_back(merge[0].get<std::string>() + merge_separator +
                            merge[1].get<std::string>());
      continue;
    }
    if (!merge.is_string()) return fail();
    std::string text = merge.get<std::string>();
    const size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos) return fail();
    text[space] = merge_separator;
    data.merges.push_back(std::move(text));
  }
  return {};
}

Status check_empty(const JsonField& field) {
  const auto& value = field.value();
  if (value.is_null() || value == "" || value == 0) return {};
  return field.unsupported(fmt::format("{} isn't supported", printable(value.dump())));
}

// Of all tokens by their text; the last of equal ones, which Tokenizer::create refuses.
text::TokenIds ids_of(const TokenizerData& data) {
  text::TokenIds ids;
  ids.reserve(data.tokens.size());
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    if (!data.tokens[i].empty()) ids[data.tokens[i]] = static_cast<int32_t>(i);
  }
  return ids;
}

Status read_byte_pair_model(const JsonField& model, TokenizerData& data, ModelOptions& options) {
  KVART_RETURN_IF_ERROR(model.check_members(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    KVART_RETURN_IF_ERROR(check_empty(model.member(key)));
  }
  const auto fuse = model.member("fuse_unk").get_bool(false);
  const auto bytes = model.member("byte_fallback").get_bool(false);
  const auto whole = model.member("ignore_merges").get_bool(false);
  for (const auto* flag : {&fuse, &bytes, &whole}) {
    if (!*flag) return flag->error();
  }
  options.fuse_unknown = *fuse;
  options.byte_fallback = *bytes;
  options.joins_over_dropped = true;
  if (*whole) options.whole_pieces = ModelOptions::WholePieces::always;
  KVART_RETURN_IF_ERROR(read_vocabulary(model.member("vocab"), *bytes, data));
  KVART_RETURN_IF_ERROR(read_merges(model.member("merges"), data));
  const JsonField unknown = model.member("unk_token");
  if (unknown.is_null()) return {};
  const auto name = unknown.get_string();
  if (!name) return name.error();
  const JsonField vocabulary_field = model.member("vocab");
  const auto& vocabulary = vocabulary_field.value();
  const auto found = vocabulary.find(*name);
  if (found == vocabulary.end()) {
    return unknown.invalid(fmt::format("'{}' isn't in the vocabulary", printable(*name)));
  }
  data.unk = found->get<int32_t>();
  return {};
}

Status read_unigram_model(const JsonField& model, TokenizerData& data, ModelOptions& options) {
  KVART_RETURN_IF_ERROR(model.check_members({"type", "unk_id", "vocab", "byte_fallback"}));
  const auto bytes = model.member("byte_fallback").get_bool(false);
  if (!bytes) return bytes.error();
  options.kind = ModelOptions::Kind::unigram;
  options.byte_fallback = *bytes;
  options.fuse_unknown = true;
  KVART_RETURN_IF_ERROR(read_scored_vocabulary(model.member("vocab"), *bytes, data));
  const JsonField unknown = model.member("unk_id");
  if (unknown.is_null()) return {};
  const auto id = unknown.get_integer();
  if (!id) return id.error();
  if (*id < 0 || *id >= static_cast<int64_t>(data.tokens.size())) {
    return unknown.invalid(fmt::format("{} isn't a token of the vocabulary", *id));
  }
  data.unk = static_cast<int32_t>(*id);
  return {};
}

Status read_model(const JsonField& model, TokenizerData& data, ModelOptions& options) {
  KVART_RETURN_IF_ERROR(model.check_object());
  const JsonField type = model.member("type");
  std::string name = "BPE";  // files that are old don't say it
  if (!type.is_null()) {
    auto value = type.get_string();
    if (!value) return value.error();
    name = std::move(*value);
  }
  if (name == "BPE") {
    KVART_RETURN_IF_ERROR(read_byte_pair_model(model, data, options));
  } else if (name == "Unigram") {
    KVART_RETURN_IF_ERROR(read_unigram_model(model, data, options));
  } else {
    return type.unsupported(
        fmt::format("'{}' isn't supported; known: BPE, Unigram", printable(name)));
  }
  if (data.unk) {
    data.token_types[static_cast<size_t>(*data.unk)] = static_cast<int32_t>(TokenType::unknown);
  }
  return {};
}

Status read_added_token(const JsonField& field, size_t count, TokenizerData& data,
                        std::vector<AddedToken>& out) {
  KVART_RETURN_IF_ERROR(field.check_members(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  const auto id = field.member("id").get_integer();
  if (!id) return id.error();
  auto content = field.member("content").get_string();
  if (!content) return content.error();
  AddedToken token;
  const std::pair<const char*, bool AddedToken::*> flags[] = {
      {"special", &AddedToken::special},
      {"lstrip", &AddedToken::lstrip},
      {"rstrip", &AddedToken::rstrip},
      {"normalized", &AddedToken::normalized},
      {"single_word", &AddedToken::single_word}};
  for (const auto& [key, member] : flags) {
    const auto value = field.member(key).get_bool(false);
    if (!value) return value.error();
    token.*member = *value;
  }
  KVART_RETURN_IF_ERROR(make_room(field.member("id"), *id, count, data));
  const std::string& present = data.tokens[static_cast<size_t>(*id)];
  if (!is_free(data, *id) && present != *content) {
    return field.member("id").invalid(fmt::format("{} is the id of '{}', not of '{}'", *id,
                                                  printable(present), printable(*content)));
  }
  if (content->empty()) return {};  // found nowhere
  put(data, *id, *content, token.special ? TokenType::control : TokenType::user_defined);
  token.token = static_cast<int32_t>(*id);
  token.content = std::move(*content);
  out.push_back(std::move(token));
  return {};
}

Status read_added_tokens(const JsonField& field, TokenizerData& data,
                         std::vector<AddedToken>& out) {
  if (field.is_null()) return {};
  KVART_RETURN_IF_ERROR(field.check_list());
  const size_t count = data.tokens.size() + field.value().size();
  for (const JsonField& element : field.elements()) {
    KVART_RETURN_IF_ERROR(read_added_token(element, count, data, out));
  }
  if (!data.scores.empty()) data.scores.resize(data.tokens.size(), 0.0f);
  return {};
}

// A token of the configuration: its text, or an object with it as `content`.
Status read_named_token(const JsonField& field, const text::TokenIds& ids,
                        std::optional<int32_t>& out) {
  if (field.is_null()) return {};
  const auto name = field.is_object() ? field.member("content").get_string() : field.get_string();
  if (!name) return name.error();
  const int32_t id = text::find_token(ids, *name);
  if (id == no_token) {
    return field.invalid(fmt::format("'{}' isn't in the vocabulary", printable(*name)));
  }
  out = id;
  return {};
}

Status read_frame(const JsonField& field, TokenizerData& data) {
  text::Frame frame;
  KVART_RETURN_IF_ERROR(text::read_post_processor(field, frame));
  if (frame.before.size() > 1 || frame.after.size() > 1) {
    return field.unsupported("more than one token before or after the text");
  }
  const auto size = static_cast<int64_t>(data.tokens.size());
  for (const auto* list : {&frame.before, &frame.after}) {
    for (const int64_t id : *list) {
      if (id < 0 || id >= size) {
        return field.invalid(fmt::format("{} isn't a token of the vocabulary", id));
      }
    }
  }
  data.add_bos = !frame.before.empty();
  data.add_eos = !frame.after.empty();
  if (data.add_bos) data.bos = static_cast<int32_t>(frame.before[0]);
  if (data.add_eos) data.eos = static_cast<int32_t>(frame.after[0]);
  return {};
}

// The configuration's word counts: the classes that read it build the frame anew from it.
Status read_config(const JsonField& config, TokenizerData& data) {
  KVART_RETURN_IF_ERROR(config.check_object());
  const text::TokenIds ids = ids_of(data);
  KVART_RETURN_IF_ERROR(read_named_token(config.member("bos_token"), ids, data.bos));
  KVART_RETURN_IF_ERROR(read_named_token(config.member("eos_token"), ids, data.eos));
  KVART_RETURN_IF_ERROR(read_named_token(config.member("pad_token"), ids, data.pad));
  const auto add_bos = config.member("add_bos_token").get_bool(data.add_bos);
  if (!add_bos) return add_bos.error();
  const auto add_eos = config.member("add_eos_token").get_bool(data.add_eos);
  if (!add_eos) return add_eos.error();
  data.add_bos = *add_bos;
  data.add_eos = *add_eos;
  return {};
}

Status read_document(const JsonField& root, TokenizerData& data) {
  // Truncation and padding are of batches that were once made; they say nothing of one text.
  KVART_RETURN_IF_ERROR(
      root.check_members({"version", "truncation", "padding", "added_tokens", "normalizer",
                          "pre_tokenizer", "post_processor", "decoder", "model"}));
  TokenizerPipeline pipeline;
  KVART_RETURN_IF_ERROR(text::read_normalizer(root.member("normalizer"), pipeline.normalizers));
  KVART_RETURN_IF_ERROR(
      text::read_pre_tokenizer(root.member("pre_tokenizer"), pipeline.pre_tokenizers));
  KVART_RETURN_IF_ERROR(text::read_decoder(root.member("decoder"), pipeline.decoder));
  KVART_RETURN_IF_ERROR(read_model(root.member("model"), data, pipeline.model));
  KVART_RETURN_IF_ERROR(
      read_added_tokens(root.member("added_tokens"), data, pipeline.added_tokens));
  KVART_RETURN_IF_ERROR(read_frame(root.member("post_processor"), data));
  data.pipeline = std::move(pipeline);
  return {};
}

}  // namespace

Result<TokenizerData> tokenizer_data_from_json(const std::string& tokenizer_json,
                                               const std::string& tokenizer_config_json,
                                               const std::string& name) {
  const auto document = parse_json(tokenizer_json, name);
  if (!document) return document.error();
  TokenizerData data;
  data.source = name;
  data.model = "tokenizer.json";
  KVART_RETURN_IF_ERROR(read_document(JsonField(*document, name, ""), data));
  if (tokenizer_config_json.empty()) return data;
  const std::string config_name = name + ": tokenizer_config.json";
  const auto config = parse_json(tokenizer_config_json, config_name);
  if (!config) return config.error();
  KVART_RETURN_IF_ERROR(read_config(JsonField(*config, config_name, ""), data));
  return data;
}

}  // namespace kvart
