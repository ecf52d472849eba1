// Checking vocabularies and indexing their tokens, merges and bytes.
#include "model/text/tokenizer_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "model/file/printable.h"
#include "model/text/tokenizer_bpe.h"
#include "model/text/tokenizer_unigram.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart::text {
namespace {

// Beside the eos and eot ids. A file's name or a repository's ends a completion: what would follow
// is another file.
constexpr std::string_view end_names[] = {
    "<|im_end|>",        "<|eot_id|>",    "<|eom_id|>",    "<|end|>",      "<|endoftext|>",
    "<|end_of_text|>",   "</s>",          "<eos>",         "<EOT>",        "<|return|>",
    "<|call|>",          "<end_of_turn>", "[EOS]",         "[EOT]",        "<reponame>",
    "<|fim_pad|>",       "<fim_pad>",     "<|repo_name|>", "<|file_sep|>", "<｜end▁of▁sentence｜>",
    "<end_of_utterance>"};

// `key` is GGUF's; tokenizer.json has its lists under other names.
Error bad(const TokenizerData& data, std::string_view key, const std::string& message) {
  std::string field = fmt::format("tokenizer.ggml.{}", key);
  if (data.pipeline) {
    const bool list = key.starts_with("tokens") || key.starts_with("scores");
    const size_t index = std::min(key.find('['), key.size());
    field = list                        ? fmt::format("model.vocab{}", key.substr(index))
            : key.starts_with("merges") ? fmt::format("model.{}", key)
                                        : std::string(key);
  }
  const std::string source = data.source.empty() ? "" : data.source + ": ";
  return {ErrorCode::invalid_file, fmt::format("{}{}: {}", source, field, message)};
}

Status check_id(const TokenizerData& data, const char* key, std::optional<int32_t> id) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < data.tokens.size())) return {};
  return bad(
      data, key,
      fmt::format("{} isn't a token id; the vocabulary has {} tokens", *id, data.tokens.size()));
}

// A control token must never come out of plain text, whatever the merges say, nor a token that
// fills a gap; a byte's token stands for that byte, not for its name.
bool may_come_from_text(TokenType type) {
  return type == TokenType::undefined || type == TokenType::normal ||
         type == TokenType::user_defined;
}

// In the byte alphabet every token may be a byte's.
bool may_come_from_text(TokenType type, bool of_bytes) {
  return may_come_from_text(type) || (of_bytes && type == TokenType::byte);
}

Result<TokenIds> index_tokens(const TokenizerData& data) {
  const std::vector<std::string>& tokens = data.tokens;
  TokenIds ids;
  ids.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].empty()) continue;  // never produced, decodes to nothing
    const auto [place, inserted] = ids.emplace(tokens[i], static_cast<int32_t>(i));
    if (!inserted) {
      return bad(data, fmt::format("tokens[{}]", i),
                 fmt::format("'{}' is token {} already", printable(tokens[i]), place->second));
    }
  }
  return ids;
}

Result<MergeTable> index_merges(const TokenizerData& data, const TokenIds& ids,
                                const std::vector<TokenType>& types, bool of_bytes) {
  MergeTable table(data.merges.size());
  const char separator = data.merge_separator;
  std::string merged;
  for (size_t i = 0; i < data.merges.size(); ++i) {
    const std::string_view merge = data.merges[i];
    const auto fail = [&](std::string_view reason) {
      return bad(data, fmt::format("merges[{}]", i),
                 fmt::format("'{}': {}", printable(merge), reason));
    };
    const size_t space = merge.find(separator);
    if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() ||
        merge.find(separator, space + 1) != std::string_view::npos) {
      return fail("expected two tokens with one space between them");
    }
    const int32_t left = find_token(ids, merge.substr(0, space));
    const int32_t right = find_token(ids, merge.substr(space + 1));
    merged.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const int32_t result = find_token(ids, merged);
    if (left == no_token || right == no_token || result == no_token) {
      return fail(result == no_token ? "what it makes isn't in the vocabulary"
                                     : "one of the two isn't in the vocabulary");
    }
    if (!may_come_from_text(types[static_cast<size_t>(result)], of_bytes)) continue;
    table.insert(left, right, {static_cast<int32_t>(i), result});
  }
  return table;
}

std::array<int32_t, 256> no_bytes() {
  std::array<int32_t, 256> bytes{};
  bytes.fill(no_token);
  return bytes;
}

std::array<int32_t, 256> index_symbols(const TokenIds& ids, const std::vector<TokenType>& types) {
  std::array<int32_t, 256> bytes = no_bytes();
  std::string symbol;
  for (size_t byte = 0; byte < 256; ++byte) {
    symbol.clear();
    append_utf8(byte_symbols[byte], symbol);
    const int32_t token = find_token(ids, symbol);
    if (token != no_token && may_come_from_text(types[static_cast<size_t>(token)], true)) {
      bytes[byte] = token;
    }
  }
  return bytes;
}

// The byte that a token's name <0xXX> stands for.
std::optional<uint8_t> named_byte(std::string_view name) {
  if (name.size() != 6 || name.substr(0, 3) != "<0x" || name[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : name.substr(3, 2)) {
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if (c >= 'A' && c <= 'F') {
      value = value * 16 + (c - 'A' + 10);
    } else {
      return std::nullopt;
    }
  }
  return static_cast<uint8_t>(value);
}

std::array<int32_t, 256> index_named_bytes(const std::vector<std::string>& tokens,
                                           const std::vector<TokenType>& types) {
  std::array<int32_t, 256> bytes = no_bytes();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto byte = named_byte(tokens[i]);
    if (byte && (types[i] == TokenType::byte || may_come_from_text(types[i]))) {
      bytes[*byte] = static_cast<int32_t>(i);
    }
  }
  return bytes;
}

// The tokens that text may become, by the text of a piece.
TokenIds piece_ids(const TokenizerData& data, const std::vector<TokenType>& types, bool of_bytes) {
  TokenIds ids;
  ids.reserve(data.tokens.size());
  std::string bytes;
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    if (!may_come_from_text(types[i], of_bytes) || data.tokens[i].empty()) continue;
    bytes.clear();
    // An added token's name is no symbols.
    if (of_bytes &&
        (types[i] == TokenType::user_defined || !append_symbol_bytes(data.tokens[i], bytes))) {
      continue;
    }
    ids.emplace(of_bytes ? bytes : data.tokens[i], static_cast<int32_t>(i));
  }
  return ids;
}

// The unknown token, unless it begins or ends a text too: a character that the vocabulary lacks
// must not end a turn.
int32_t usable_unknown(const TokenizerData& data) {
  if (!data.unk) return no_token;
  const int32_t unknown = *data.unk;
  const bool frames = unknown == data.bos || unknown == data.eos || unknown == data.eot ||
                      std::find(data.ends.begin(), data.ends.end(), unknown) != data.ends.end() ||
                      is_end_name(data.tokens[static_cast<size_t>(unknown)]);
  return frames ? no_token : unknown;
}

// Unused tokens at the end, which fill up a vocabulary to the model's size, may have none.
Status check_scores(const TokenizerData& data, const std::vector<TokenType>& types) {
  for (size_t i = 0; i < data.scores.size(); ++i) {
    if (!std::isfinite(data.scores[i])) {
      return bad(data, fmt::format("scores[{}]", i),
                 fmt::format("{} isn't a finite number", data.scores[i]));
    }
  }
  const size_t count = data.scores.size();
  if (count <= types.size() &&
      std::all_of(types.begin() + static_cast<std::ptrdiff_t>(count), types.end(),
                  [](TokenType type) { return type == TokenType::unused; })) {
    return {};
  }
  return bad(data, "scores",
             fmt::format("{} entries; expected {}, one for each token", count, types.size()));
}

std::unique_ptr<const PieceEncoder> make_unigram(const TokenizerData& data,
                                                 const std::vector<TokenType>& types,
                                                 const Fallback& fallback) {
  std::vector<std::pair<std::string_view, int32_t>> names;
  float worst = std::numeric_limits<float>::max();
  bool any = false;
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    if (types[i] == TokenType::normal) {
      worst = std::min(worst, data.scores[i]);
      any = true;
    }
    if (may_come_from_text(types[i])) {
      names.emplace_back(data.tokens[i], static_cast<int32_t>(i));
    }
  }
  return std::make_unique<UnigramEncoder>(std::move(names), data.scores, any ? worst : 0.0f,
                                          fallback);
}

}  // namespace

bool is_end_name(std::string_view name) {
  return std::find(std::begin(end_names), std::end(end_names), name) != std::end(end_names);
}

Status check_vocabulary(const TokenizerData& data) {
  const size_t count = data.tokens.size();
  if (count == 0 || count > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return bad(data, "tokens", fmt::format("{} tokens; expected 1 to 2147483647", count));
  }
  if (!data.token_types.empty() && data.token_types.size() != count) {
    return bad(
        data, "token_type",
        fmt::format("{} entries; expected {}, one for each token", data.token_types.size(), count));
  }
  for (size_t i = 0; i < data.token_types.size(); ++i) {
    const int32_t type = data.token_types[i];
    if (type < 0 || type > static_cast<int32_t>(TokenType::byte)) {
      return bad(data, fmt::format("token_type[{}]", i), fmt::format("{}; expected 0 to 6", type));
    }
  }
  KVART_RETURN_IF_ERROR(check_id(data, "bos_token_id", data.bos));
  KVART_RETURN_IF_ERROR(check_id(data, "eos_token_id", data.eos));
  KVART_RETURN_IF_ERROR(check_id(data, "eot_token_id", data.eot));
  KVART_RETURN_IF_ERROR(check_id(data, "unknown_token_id", data.unk));
  KVART_RETURN_IF_ERROR(check_id(data, "padding_token_id", data.pad));
  for (const int32_t end : data.ends) KVART_RETURN_IF_ERROR(check_id(data, "eos_token_id", end));
  if (data.add_bos && !data.bos) {
    return bad(data, "add_bos_token", "it is true, but bos_token_id is missing");
  }
  if (data.add_eos && !data.eos) {
    return bad(data, "add_eos_token", "it is true, but eos_token_id is missing");
  }
  return {};
}

std::vector<TokenType> read_types(const TokenizerData& data) {
  std::vector<TokenType> types(data.tokens.size(), TokenType::normal);
  for (size_t i = 0; i < data.token_types.size(); ++i) {
    types[i] = static_cast<TokenType>(data.token_types[i]);
    // Some files mark the token that ends a turn as user-defined; plain text could end a turn then.
    if (types[i] == TokenType::user_defined && is_end_name(data.tokens[i])) {
      types[i] = TokenType::control;
    }
  }
  return types;
}

Result<std::unique_ptr<const PieceEncoder>> make_encoder(const TokenizerData& data,
                                                         const std::vector<TokenType>& types,
                                                         const ModelOptions& options,
                                                         bool of_bytes) {
  using Whole = ModelOptions::WholePieces;
  using Encoder = std::unique_ptr<const PieceEncoder>;
  auto ids = index_tokens(data);
  if (!ids) return ids.error();
  Fallback fallback;
  fallback.byte_tokens = options.byte_fallback ? index_named_bytes(data.tokens, types) : no_bytes();
  fallback.unknown = usable_unknown(data);
  fallback.fuse_unknown = options.fuse_unknown;
  if (options.kind != ModelOptions::Kind::byte_pair) {
    KVART_RETURN_IF_ERROR(check_scores(data, types));
    if (options.kind == ModelOptions::Kind::unigram) return make_unigram(data, types, fallback);
    return Encoder(
        std::make_unique<ScoredPairMerger>(piece_ids(data, types, false), data.scores, fallback));
  }
  auto merges = index_merges(data, *ids, types, of_bytes);
  if (!merges) return merges.error();
  BytePairMerger::Vocabulary vocabulary;
  vocabulary.whole_pieces = options.whole_pieces == Whole::always;
  vocabulary.whole_newlines = options.whole_pieces == Whole::newlines;
  vocabulary.of_bytes = of_bytes;
  vocabulary.joins_over_dropped = options.joins_over_dropped;
  vocabulary.fallback = fallback;
  // GGUF's byte-level vocabularies name an unknown token, but never use it.
  if (of_bytes && !data.pipeline) vocabulary.fallback.unknown = no_token;
  if (!of_bytes || options.whole_pieces != Whole::never) {
    vocabulary.ids = piece_ids(data, types, of_bytes);
  }
  return Encoder(
      std::make_unique<BytePairMerger>(of_bytes ? index_symbols(*ids, types) : no_bytes(),
                                       std::move(*merges), std::move(vocabulary)));
}

bool append_token_bytes(std::string_view token, TokenType type, const DecoderOptions& decoder,
                        EncodeWork& work, std::string& out) {
  if (type == TokenType::unused) return true;
  const bool symbols =
      type == TokenType::normal || type == TokenType::undefined || type == TokenType::byte;
  if (decoder.byte_symbols && symbols && append_symbol_bytes(token, out)) return true;
  const auto byte = decoder.byte_fallback && symbols ? named_byte(token) : std::nullopt;
  if (byte) {
    out.push_back(static_cast<char>(*byte));
    return true;
  }
  if (!symbols || decoder.replacements.empty()) {
    out += token;
    return true;
  }
  std::string text(token);
  for (const auto& [from, to] : decoder.replacements) {
    std::string replaced;
    if (!append_replaced(text, from, to, work, replaced)) return false;
    text = std::move(replaced);
  }
  out += text;
  return true;
}

}  // namespace kvart::text
