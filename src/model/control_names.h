// The names of a vocabulary's control tokens, to find them in what a user wrote.
#pragma once

#include <string>
#include <string_view>

#include "model/text/tokenizer.h"
#include "model/text/tokenizer_trie.h"

namespace kvart {

class ControlNames {
 public:
  explicit ControlNames(const Tokenizer& tokenizer);

  // `text` with `begin` and `end` around every stretch that spells a control token, the longest
  // from the left.
  [[nodiscard]] std::string mark(std::string_view text, std::string_view begin,
                                 std::string_view end) const;

 private:
  text::TokenTrie names_;
};

}  // namespace kvart
