// Tokenizer: text to token ids and back, and a decoder for tokens that arrive one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/text/tokenizer_pipeline.h"

namespace kvart {

// As a vocabulary file stores them.
enum class TokenType : int32_t {
  undefined = 0,
  normal = 1,
  unknown = 2,
  control = 3,       // steers the model: never made from plain text
  user_defined = 4,  // ordinary text that is always one token
  unused = 5,        // fills a gap in the ids: never made, decodes to nothing
  byte = 6,
};

// What a vocabulary file says; read by tokenizer_data_from_gguf or tokenizer_data_from_json.
struct TokenizerData {
  std::string source;      // for messages; may be empty
  std::string model, pre;  // tokenizer.ggml.model and .pre: they name a pipeline
  std::vector<std::string> tokens;
  std::vector<int32_t> token_types;  // one for each token, or empty: all normal
  std::vector<float> scores;         // one for each token, or empty
  std::vector<std::string> merges;   // "left right", the first to merge first
  char merge_separator = ' ';        // what stands between left and right
  std::optional<int32_t> bos, eos, eot, unk, pad;
  std::vector<int32_t> ends;  // more tokens at which an answer ends
  bool add_bos = false, add_eos = false, add_space_prefix = false;
  bool remove_extra_whitespaces = false, whitespace_as_suffix = false;
  std::string charsmap;                       // tokenizer.ggml.precompiled_charsmap
  std::optional<TokenizerPipeline> pipeline;  // instead of the named one
};

enum class SpecialTokens {
  plain,  // the text of a control token is text: for whatever a user wrote
  parse,  // it is that token: for what a chat template wrote
};

enum class ControlTokens { skip, show };

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};

// Immutable; any number of threads may use one at the same time.
class Tokenizer {
 public:
  // Refused: an unknown model or pre-tokenizer, lists whose lengths disagree, ids outside the
  // vocabulary, a token twice, a merge that isn't of two known tokens to a third, a score that
  // isn't finite, a damaged charsmap, added tokens or replacements that take too much work. A
  // message names key, value and place.
  static Result<Tokenizer> create(const TokenizerData& data);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Adds neither BOS nor EOS. Each invalid byte of `text` counts as U+FFFD; a byte that the
  // vocabulary has no token for gives the unknown token, or none. An error where a hostile
  // tokenizer takes more work than text::EncodeWork allows; it names the pattern or the step.
  Result<std::vector<int32_t>> encode(std::string_view text, SpecialTokens special) const;

  // Special tokens are parsed, but not where their names touch one of the ranges `plain`
  // (ascending, disjoint): for a rendered template with a user's text in it.
  Result<std::vector<int32_t>> encode(std::string_view text,
                                      std::span<const TextRange> plain) const;

  // Valid UTF-8: U+FFFD for each invalid part. Ids outside the vocabulary decode to nothing.
  [[nodiscard]] std::string decode(std::span<const int32_t> tokens,
                                   ControlTokens control = ControlTokens::skip) const;

  // The bytes that a token stands for (a part of a character, maybe); a control token's are its
  // name.
  [[nodiscard]] std::string_view token_bytes(int32_t token) const;
  [[nodiscard]] TokenType type(int32_t token) const;   // undefined outside the vocabulary
  [[nodiscard]] bool is_control(int32_t token) const;  // control or unknown
  [[nodiscard]] bool is_end_of_generation(int32_t token) const;
  // Text begins with a space that its writer didn't write; decode leaves it out.
  [[nodiscard]] bool strips_first_space() const;

  [[nodiscard]] int32_t vocab_size() const;
  [[nodiscard]] std::optional<int32_t> bos() const;
  [[nodiscard]] std::optional<int32_t> eos() const;
  [[nodiscard]] bool add_bos() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

// Turns tokens into text as they arrive. All that it returns, joined, equals Tokenizer::decode of
// the same tokens.
class StreamDecoder {
 public:
  // The tokenizer must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, ControlTokens control = ControlTokens::skip)
      : tokenizer_(&tokenizer), control_(control) {}

  // The characters that `token` completes; holds back at most the first 3 bytes of an unfinished
  // one.
  std::string push(int32_t token);
  // What is left at the end: nothing, or U+FFFD for an unfinished character. Ready for new text
  // afterwards.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  ControlTokens control_;
  bool at_start_ = true;
  std::string pending_;
};

}  // namespace kvart
