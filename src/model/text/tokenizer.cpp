// Checks of a vocabulary, special tokens, encoding and decoding.
#include "model/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "model/file/printable.h"
#include "model/text/tokenizer_bpe.h"
#include "model/text/tokenizer_split.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart {
namespace {

using text::no_token;

// Names under which published vocabularies keep tokens that end an answer, beside their eos and eot
// ids. A file's name or a repository's ends a completion: what would follow is another file.
constexpr std::string_view end_names[] = {
    "<|im_end|>",        "<|eot_id|>",    "<|eom_id|>",    "<|end|>",      "<|endoftext|>",
    "<|end_of_text|>",   "</s>",          "<eos>",         "<EOT>",        "<|return|>",
    "<|call|>",          "<end_of_turn>", "[EOS]",         "[EOT]",        "<reponame>",
    "<|fim_pad|>",       "<fim_pad>",     "<|repo_name|>", "<|file_sep|>", "<｜end▁of▁sentence｜>",
    "<end_of_utterance>"};

bool is_end_name(std::string_view name) {
  return std::find(std::begin(end_names), std::end(end_names), name) != std::end(end_names);
}

// Text to id, for looking up without making a string.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

struct Special {
  std::string name;
  int32_t token = no_token;
  bool from_plain_text = false;
};

// A stretch of text between special tokens, or one of those.
struct Fragment {
  std::string_view text;
  int32_t token = no_token;
};

Error bad(std::string message) {
  return {ErrorCode::invalid_file, std::move(message)};
}

Status check_id(const char* key, std::optional<int32_t> id, size_t vocab_size) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < vocab_size)) return {};
  return bad(fmt::format("tokenizer.ggml.{}: {} isn't a token id; the vocabulary has {} tokens",
                         key, *id, vocab_size));
}

Status check_counts_and_ids(const TokenizerData& data) {
  const size_t count = data.tokens.size();
  if (count == 0 || count > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return bad(fmt::format("tokenizer.ggml.tokens: {} tokens; expected 1 to 2147483647", count));
  }
  if (!data.token_types.empty() && data.token_types.size() != count) {
    return bad(fmt::format("tokenizer.ggml.token_type: {} entries; expected {}, one for each token",
                           data.token_types.size(), count));
  }
  for (size_t i = 0; i < data.token_types.size(); ++i) {
    const int32_t type = data.token_types[i];
    if (type < 0 || type > static_cast<int32_t>(TokenType::byte)) {
      return bad(fmt::format("tokenizer.ggml.token_type[{}]: {}; expected 0 to 6", i, type));
    }
  }
  KVART_RETURN_IF_ERROR(check_id("bos_token_id", data.bos, count));
  KVART_RETURN_IF_ERROR(check_id("eos_token_id", data.eos, count));
  KVART_RETURN_IF_ERROR(check_id("eot_token_id", data.eot, count));
  KVART_RETURN_IF_ERROR(check_id("unknown_token_id", data.unk, count));
  KVART_RETURN_IF_ERROR(check_id("padding_token_id", data.pad, count));
  if (data.add_bos && !data.bos) {
    return bad("tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing");
  }
  if (data.add_eos && !data.eos) {
    return bad("tokenizer.ggml.add_eos_token is true, but tokenizer.ggml.eos_token_id is missing");
  }
  return {};
}

Status check_kind(const TokenizerData& data) {
  if (data.model != "gpt2") {
    return Error{ErrorCode::unsupported,
                 fmt::format("tokenizer.ggml.model: tokenizer '{}' isn't supported; known: gpt2",
                             printable(data.model))};
  }
  if (data.add_space_prefix) {
    return Error{ErrorCode::unsupported,
                 "tokenizer.ggml.add_space_prefix: true isn't supported for tokenizer 'gpt2'"};
  }
  return {};
}

// A control token must never come out of plain text, whatever the merges say, nor a token that
// fills a gap.
bool may_come_from_text(TokenType type) {
  return type != TokenType::control && type != TokenType::unknown && type != TokenType::unused;
}

Result<TokenIds> index_tokens(const std::vector<std::string>& tokens) {
  TokenIds ids;
  ids.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].empty()) continue;  // never produced, decodes to nothing
    const auto [place, inserted] = ids.emplace(tokens[i], static_cast<int32_t>(i));
    if (!inserted) {
      return bad(fmt::format("tokenizer.ggml.tokens[{}]: '{}' is token {} already", i,
                             printable(tokens[i]), place->second));
    }
  }
  return ids;
}

Result<text::MergeTable> index_merges(const TokenizerData& data, const TokenIds& ids,
                                      const std::vector<TokenType>& types) {
  text::MergeTable table(data.merges.size());
  std::string merged;
  for (size_t i = 0; i < data.merges.size(); ++i) {
    const std::string_view merge = data.merges[i];
    const auto fail = [&](std::string_view reason) {
      return bad(fmt::format("tokenizer.ggml.merges[{}]: '{}': {}", i, printable(merge), reason));
    };
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string_view::npos) {
      return fail("expected two tokens with one space between them");
    }
    const auto left = ids.find(merge.substr(0, space));
    const auto right = ids.find(merge.substr(space + 1));
    merged.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const auto result = ids.find(merged);
    if (left == ids.end() || right == ids.end() || result == ids.end()) {
      return fail(result == ids.end() ? "what it makes isn't in the vocabulary"
                                      : "one of the two isn't in the vocabulary");
    }
    if (!may_come_from_text(types[static_cast<size_t>(result->second)])) continue;
    table.insert(left->second, right->second, {static_cast<int32_t>(i), result->second});
  }
  return table;
}

std::array<int32_t, 256> index_bytes(const TokenIds& ids, const std::vector<TokenType>& types) {
  std::array<int32_t, 256> bytes{};
  std::string symbol;
  for (size_t byte = 0; byte < 256; ++byte) {
    symbol.clear();
    text::append_utf8(text::byte_symbols[byte], symbol);
    const auto found = ids.find(symbol);
    const bool usable =
        found != ids.end() && may_come_from_text(types[static_cast<size_t>(found->second)]);
    bytes[byte] = usable ? found->second : no_token;
  }
  return bytes;
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

}  // namespace

struct Tokenizer::Impl {
  Impl(text::PreTokenizer pre, text::BytePairMerger merging)
      : pre_tokenizer(std::move(pre)), merger(std::move(merging)) {}

  bool contains(int32_t token) const {
    return token >= 0 && static_cast<size_t>(token) < types.size();
  }
  void fill_tokens(const TokenizerData& data);
  void fill_specials(const TokenizerData& data);
  void cut_at(const Special& special, std::vector<Fragment>& fragments) const;
  void encode_text(std::string_view text, std::vector<int32_t>& out) const;

  text::PreTokenizer pre_tokenizer;
  text::BytePairMerger merger;
  std::vector<TokenType> types;
  std::string bytes;                // of all tokens
  std::vector<size_t> byte_ends;    // of each token in `bytes`
  std::vector<Special> specials;    // the longest name first, as they are looked for
  std::vector<int32_t> end_tokens;  // ascending
  TokenIds whole_pieces;            // by bytes; filled only if the pre-tokenizer asks for it
  std::optional<int32_t> bos, eos, pad;
  bool add_bos = false, add_eos = false;
};

void Tokenizer::Impl::fill_tokens(const TokenizerData& data) {
  byte_ends.reserve(data.tokens.size());
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const size_t begin = bytes.size();
    const bool symbols = types[i] == TokenType::normal || types[i] == TokenType::undefined ||
                         types[i] == TokenType::byte;
    if (types[i] != TokenType::unused &&
        (!symbols || !text::append_symbol_bytes(data.tokens[i], bytes))) {
      bytes += data.tokens[i];
    }
    byte_ends.push_back(bytes.size());
    if (symbols && pre_tokenizer.whole_pieces_first() && bytes.size() > begin) {
      whole_pieces.emplace(bytes.substr(begin), static_cast<int32_t>(i));
    }
  }
}

void Tokenizer::Impl::fill_specials(const TokenizerData& data) {
  for (size_t i = 0; i < types.size(); ++i) {
    const bool user_defined = types[i] == TokenType::user_defined;
    const bool control = types[i] == TokenType::control || types[i] == TokenType::unknown;
    const auto token = static_cast<int32_t>(i);
    if ((user_defined || control) && !data.tokens[i].empty()) {
      specials.push_back({data.tokens[i], token, user_defined});
    }
    const bool named_end = types[i] == TokenType::control && is_end_name(data.tokens[i]);
    if (named_end || token == data.eos || token == data.eot) end_tokens.push_back(token);
  }
  std::stable_sort(specials.begin(), specials.end(), [](const Special& a, const Special& b) {
    return a.name.size() > b.name.size();
  });
}

// Cuts every text fragment at the special token's name, from the left.
void Tokenizer::Impl::cut_at(const Special& special, std::vector<Fragment>& fragments) const {
  std::vector<Fragment> cut;
  for (size_t i = 0; i < fragments.size(); ++i) {
    std::string_view rest = fragments[i].text;
    size_t found = fragments[i].token == no_token ? rest.find(special.name) : rest.npos;
    if (found != rest.npos && cut.empty()) {
      cut.reserve(fragments.size() + 2);
      cut.assign(fragments.begin(), fragments.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (found == rest.npos) {
      if (!cut.empty()) cut.push_back(fragments[i]);
      continue;
    }
    for (; found != rest.npos; found = rest.find(special.name)) {
      if (found > 0) cut.push_back({rest.substr(0, found), no_token});
      cut.push_back({{}, special.token});
      rest.remove_prefix(found + special.name.size());
    }
    if (!rest.empty()) cut.push_back({rest, no_token});
  }
  if (!cut.empty()) fragments = std::move(cut);
}

void Tokenizer::Impl::encode_text(std::string_view text, std::vector<int32_t>& out) const {
  const std::string repaired = text::repair_input(text);
  size_t begin = 0;
  for (const size_t end : pre_tokenizer.split(repaired)) {
    const std::string_view piece = std::string_view(repaired).substr(begin, end - begin);
    begin = end;
    if (pre_tokenizer.whole_pieces_first()) {
      if (const auto whole = whole_pieces.find(piece); whole != whole_pieces.end()) {
        out.push_back(whole->second);
        continue;
      }
    }
    merger.encode(piece, out);
  }
}

Result<Tokenizer> Tokenizer::create(const TokenizerData& data) {
  KVART_RETURN_IF_ERROR(check_kind(data));
  KVART_RETURN_IF_ERROR(check_counts_and_ids(data));
  auto pre_tokenizer = text::PreTokenizer::create(data.pre);
  if (!pre_tokenizer) return pre_tokenizer.error();
  std::vector<TokenType> types = read_types(data);
  auto ids = index_tokens(data.tokens);
  if (!ids) return ids.error();
  auto merges = index_merges(data, *ids, types);
  if (!merges) return merges.error();

  auto impl =
      std::make_unique<Impl>(std::move(*pre_tokenizer),
                             text::BytePairMerger(index_bytes(*ids, types), std::move(*merges)));
  impl->types = std::move(types);
  impl->fill_tokens(data);
  impl->fill_specials(data);
  impl->bos = data.bos;
  impl->eos = data.eos;
  impl->pad = data.pad;
  impl->add_bos = data.add_bos;
  impl->add_eos = data.add_eos;
  return Tokenizer(std::move(impl));
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<int32_t> out;
  if (text.empty()) return out;
  std::vector<Fragment> fragments = {{text, no_token}};
  for (const Special& candidate : impl_->specials) {
    if (special == SpecialTokens::plain && !candidate.from_plain_text) continue;
    impl_->cut_at(candidate, fragments);
  }
  for (const Fragment& fragment : fragments) {
    if (fragment.token != no_token) {
      out.push_back(fragment.token);
    } else {
      impl_->encode_text(fragment.text, out);
    }
  }
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, ControlTokens control) const {
  StreamDecoder decoder(*this, control);
  std::string text;
  for (const int32_t token : tokens) text += decoder.push(token);
  return text + decoder.flush();
}

std::string_view Tokenizer::token_bytes(int32_t token) const {
  if (!impl_->contains(token)) return {};
  const auto i = static_cast<size_t>(token);
  const size_t begin = i == 0 ? 0 : impl_->byte_ends[i - 1];
  return std::string_view(impl_->bytes).substr(begin, impl_->byte_ends[i] - begin);
}

TokenType Tokenizer::type(int32_t token) const {
  return impl_->contains(token) ? impl_->types[static_cast<size_t>(token)] : TokenType::undefined;
}

bool Tokenizer::is_control(int32_t token) const {
  const TokenType its_type = type(token);
  return its_type == TokenType::control || its_type == TokenType::unknown;
}

bool Tokenizer::is_end_of_generation(int32_t token) const {
  return std::binary_search(impl_->end_tokens.begin(), impl_->end_tokens.end(), token);
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->types.size());
}
std::optional<int32_t> Tokenizer::bos() const {
  return impl_->bos;
}
std::optional<int32_t> Tokenizer::eos() const {
  return impl_->eos;
}
std::optional<int32_t> Tokenizer::pad() const {
  return impl_->pad;
}
bool Tokenizer::add_bos() const {
  return impl_->add_bos;
}
bool Tokenizer::add_eos() const {
  return impl_->add_eos;
}
std::span<const int32_t> Tokenizer::end_of_generation() const {
  return impl_->end_tokens;
}

std::optional<int32_t> Tokenizer::find_control(std::string_view name) const {
  for (const Special& special : impl_->specials) {
    if (special.name == name && !special.from_plain_text) return special.token;
  }
  return std::nullopt;
}

std::string StreamDecoder::push(int32_t token) {
  if (control_ == ControlTokens::skip && tokenizer_->is_control(token)) return {};
  pending_ += tokenizer_->token_bytes(token);
  std::string text;
  const size_t held = text::append_repaired(pending_, text);
  pending_.erase(0, pending_.size() - held);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text;
  if (!pending_.empty()) text::append_utf8(text::replacement_character, text);
  pending_.clear();
  return text;
}

}  // namespace kvart
