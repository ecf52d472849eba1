// Putting a tokenizer together; encoding, decoding and what it says about itself.
#include "model/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "model/text/tokenizer_added.h"
#include "model/text/tokenizer_encoder.h"
#include "model/text/tokenizer_normalize.h"
#include "model/text/tokenizer_presets.h"
#include "model/text/tokenizer_split.h"
#include "model/text/tokenizer_utf8.h"
#include "model/text/tokenizer_vocabulary.h"

namespace kvart {
namespace {

using text::no_token;
using text::Span;

bool is_special(TokenType type) {
  return type == TokenType::control || type == TokenType::unknown;
}

// The tokens whose names GGUF looks for in a text: by their types.
std::vector<AddedToken> added_by_type(const TokenizerData& data,
                                      const std::vector<TokenType>& types) {
  std::vector<AddedToken> added;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != TokenType::user_defined && !is_special(types[i])) continue;
    AddedToken token;
    token.token = static_cast<int32_t>(i);
    token.content = data.tokens[i];
    added.push_back(std::move(token));
  }
  return added;
}

std::vector<int32_t> ends_of(const TokenizerData& data, const std::vector<TokenType>& types) {
  std::vector<int32_t> ends = data.ends;
  if (data.eos) ends.push_back(*data.eos);
  if (data.eot) ends.push_back(*data.eot);
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == TokenType::control && text::is_end_name(data.tokens[i])) {
      ends.push_back(static_cast<int32_t>(i));
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(text::Normalizer normalizing, text::PreTokenizer splitting)
      : normalizer(std::move(normalizing)), pre_tokenizer(std::move(splitting)) {}

  bool contains(int32_t token) const {
    return token >= 0 && static_cast<size_t>(token) < types.size();
  }
  Status fill_tokens(const TokenizerData& data, const DecoderOptions& decoder);
  Status fill_added(std::vector<AddedToken> tokens);
  Result<std::vector<int32_t>> encode(std::string_view text, bool parse_special,
                                      std::span<const Span> plain) const;
  Status encode_text(std::string_view text, bool at_start, bool parse_special,
                     text::EncodeWork& work, std::vector<int32_t>& out) const;
  Status encode_normalized(std::string text, bool at_start, text::EncodeWork& work,
                           std::vector<int32_t>& out) const;

  text::Normalizer normalizer;
  text::PreTokenizer pre_tokenizer;
  std::unique_ptr<const text::PieceEncoder> encoder;
  std::vector<TokenType> types;
  std::string bytes;              // of all tokens
  std::vector<size_t> byte_ends;  // of each token in `bytes`
  text::AddedTokens added{{}}, added_normalized{{}};
  std::vector<int32_t> end_tokens;  // ascending
  std::optional<int32_t> bos, eos;
  bool add_bos = false, strips_first_space = false;
};

Status Tokenizer::Impl::fill_tokens(const TokenizerData& data, const DecoderOptions& decoder) {
  size_t size = 0;
  for (const std::string& token : data.tokens) size += token.size();
  text::EncodeWork work(size);
  byte_ends.reserve(data.tokens.size());
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    if (!text::append_token_bytes(data.tokens[i], types[i], decoder, work, bytes)) {
      return work.error("the decoder's replacements");
    }
    byte_ends.push_back(bytes.size());
  }
  return {};
}

Status Tokenizer::Impl::fill_added(std::vector<AddedToken> tokens) {
  size_t size = 0;
  for (const AddedToken& token : tokens) size += token.content.size();
  text::EncodeWork work(size);
  std::vector<AddedToken> raw, normalized;
  for (AddedToken& token : tokens) {
    token.special = is_special(types[static_cast<size_t>(token.token)]);
    if (token.normalized && !normalizer.changes_nothing()) {
      auto content = normalizer.apply(text::repair_input(token.content), work);
      if (!content) return content.error();
      token.content = std::move(content->text);
      normalized.push_back(std::move(token));
    } else {
      raw.push_back(std::move(token));
    }
  }
  added = text::AddedTokens(std::move(raw));
  added_normalized = text::AddedTokens(std::move(normalized));
  return {};
}

Result<std::vector<int32_t>> Tokenizer::Impl::encode(std::string_view text, bool parse_special,
                                                     std::span<const Span> plain) const {
  text::EncodeWork work(text.size());
  std::vector<int32_t> out;
  const auto fragments = added.cut(text, parse_special, plain, work);
  if (!fragments) return fragments.error();
  for (const text::Fragment& fragment : *fragments) {
    const Span span = fragment.span;
    if (fragment.token != no_token) {
      out.push_back(fragment.token);
      continue;
    }
    // Places in the text are lost when it is normalized: no special token near plain text then.
    KVART_RETURN_IF_ERROR(encode_text(text.substr(span.begin, span.end - span.begin),
                                      span.begin == 0, parse_special && !text::touches(plain, span),
                                      work, out));
  }
  return out;
}

Status Tokenizer::Impl::encode_text(std::string_view text, bool at_start, bool parse_special,
                                    text::EncodeWork& work, std::vector<int32_t>& out) const {
  auto changed = normalizer.apply(text::repair_input(text), work);
  if (!changed) return changed.error();
  std::string& normalized = changed->text;
  at_start = at_start && !changed->begin_cut;
  if (added_normalized.empty()) {
    return encode_normalized(std::move(normalized), at_start, work, out);
  }
  const auto fragments = added_normalized.cut(normalized, parse_special, {}, work);
  if (!fragments) return fragments.error();
  for (const text::Fragment& fragment : *fragments) {
    const Span span = fragment.span;
    if (fragment.token != no_token) {
      out.push_back(fragment.token);
      continue;
    }
    KVART_RETURN_IF_ERROR(encode_normalized(normalized.substr(span.begin, span.end - span.begin),
                                            at_start && span.begin == 0, work, out));
  }
  return {};
}

Status Tokenizer::Impl::encode_normalized(std::string text, bool at_start, text::EncodeWork& work,
                                          std::vector<int32_t>& out) const {
  const auto pieces = pre_tokenizer.split(std::move(text), at_start, work);
  if (!pieces) return pieces.error();
  for (const Span& span : pieces->spans) {
    encoder->encode(std::string_view(pieces->text).substr(span.begin, span.end - span.begin), work,
                    out);
    if (work.exhausted()) return work.error("looking for the vocabulary's tokens");
  }
  return {};
}

Result<Tokenizer> Tokenizer::create(const TokenizerData& data) {
  std::optional<TokenizerPipeline> pipeline = data.pipeline;
  if (!pipeline) {
    auto preset = text::preset_pipeline(data);
    if (!preset) return preset.error();
    pipeline = std::move(*preset);
  }
  KVART_RETURN_IF_ERROR(text::check_vocabulary(data));
  const std::string source = data.source.empty() ? "" : data.source + ": ";
  auto normalizer = text::Normalizer::create(pipeline->normalizers, source + "normalizer");
  if (!normalizer) return normalizer.error();
  auto pre = text::PreTokenizer::create(pipeline->pre_tokenizers, source + "pre_tokenizer");
  if (!pre) return pre.error();

  auto impl = std::make_unique<Impl>(std::move(*normalizer), std::move(*pre));
  impl->types = text::read_types(data);
  auto encoder =
      text::make_encoder(data, impl->types, pipeline->model, impl->pre_tokenizer.gives_bytes());
  if (!encoder) return encoder.error();
  impl->encoder = std::move(*encoder);
  KVART_RETURN_IF_ERROR(impl->fill_tokens(data, pipeline->decoder));
  KVART_RETURN_IF_ERROR(impl->fill_added(data.pipeline ? std::move(pipeline->added_tokens)
                                                       : added_by_type(data, impl->types)));
  impl->end_tokens = ends_of(data, impl->types);
  impl->bos = data.bos;
  impl->eos = data.eos;
  impl->add_bos = data.add_bos;
  impl->strips_first_space = pipeline->decoder.strips_first_space;
  return Tokenizer(std::move(impl));
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  return impl_->encode(text, special == SpecialTokens::parse, {});
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               std::span<const TextRange> plain) const {
  std::vector<Span> spans;
  spans.reserve(plain.size());
  for (const TextRange& range : plain) spans.push_back({range.begin, range.end});
  return impl_->encode(text, true, spans);
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
  return is_special(type(token));
}

bool Tokenizer::is_end_of_generation(int32_t token) const {
  return std::binary_search(impl_->end_tokens.begin(), impl_->end_tokens.end(), token);
}

bool Tokenizer::strips_first_space() const {
  return impl_->strips_first_space;
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
bool Tokenizer::add_bos() const {
  return impl_->add_bos;
}

std::string StreamDecoder::push(int32_t token) {
  const bool control = tokenizer_->is_control(token);
  if (control_ == ControlTokens::skip && control) return {};
  std::string_view bytes = tokenizer_->token_bytes(token);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (!control && tokenizer_->strips_first_space() && bytes.front() == ' ') {
      bytes.remove_prefix(1);
    }
  }
  pending_ += bytes;
  std::string text;
  const size_t held = text::append_repaired(pending_, text);
  pending_.erase(0, pending_.size() - held);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text;
  if (!pending_.empty()) text::append_utf8(text::replacement_character, text);
  pending_.clear();
  at_start_ = true;
  return text;
}

}  // namespace kvart
