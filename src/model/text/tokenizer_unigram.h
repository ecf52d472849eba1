// The unigram model: the cut of a piece whose tokens' scores sum up highest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "model/text/tokenizer_encoder.h"
#include "model/text/tokenizer_trie.h"

namespace kvart::text {

class UnigramEncoder : public PieceEncoder {
 public:
  // names: the tokens that may come from text, and their ids. scores: one for each token of the
  // vocabulary, finite. worst_score: the lowest of all normal tokens.
  UnigramEncoder(std::vector<std::pair<std::string_view, int32_t>> names,
                 std::span<const float> scores, float worst_score, const Fallback& fallback);

  // O(n) for tokens of bounded length.
  void encode(std::string_view piece, EncodeWork& work, std::vector<int32_t>& out) const override;

 private:
  TokenTrie trie_;
  std::vector<float> scores_;
  double unknown_score_;
  Fallback fallback_;
};

}  // namespace kvart::text
