// The names of a vocabulary's control tokens, to find them in what a user wrote.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "model/text/tokenizer.h"

namespace kvart {

class ControlNames {
 public:
  explicit ControlNames(const Tokenizer& tokenizer);

  // `text` with `begin` and `end` around every stretch that spells a control token, the longest
  // from the left. Linear in the text, whatever it is.
  [[nodiscard]] std::string mark(std::string_view text, std::string_view begin,
                                 std::string_view end) const;

 private:
  [[nodiscard]] size_t longest_at(std::string_view text) const;

  std::unordered_set<std::string> names_;
  std::array<std::vector<size_t>, 256>
      lengths_;  // of the names with that first byte, longest first
};

}  // namespace kvart
