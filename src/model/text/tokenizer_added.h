// Added and special tokens: finding their names in a text, and nowhere else turning text into them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/text/tokenizer_encoder.h"
#include "model/text/tokenizer_pipeline.h"
#include "model/text/tokenizer_trie.h"
#include "model/text/tokenizer_utf8.h"
#include "model/text/tokenizer_work.h"

namespace kvart::text {

// A stretch of text between added tokens, or one of those.
struct Fragment {
  Span span;
  int32_t token = no_token;
};

// Whether `span` shares a byte with one of the ranges (ascending, disjoint).
bool touches(std::span<const Span> ranges, Span span);

class AddedTokens {
 public:
  // Only tokens whose content isn't empty.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // `text` as fragments, from the left, the longest name first; empty stretches are left out.
  // Special tokens are found where parse_special, but not where they touch one of `plain`
  // (ascending, disjoint).
  Result<std::vector<Fragment>> cut(std::string_view text, bool parse_special,
                                    std::span<const Span> plain, EncodeWork& work) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t begin, bool parse_special,
                               std::span<const Span> plain, EncodeWork& work) const;

  std::vector<AddedToken> tokens_;
  TokenTrie trie_;  // values are places in tokens_
};

}  // namespace kvart::text
