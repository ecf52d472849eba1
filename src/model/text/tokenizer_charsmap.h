// SentencePiece's precompiled map of characters: a double-array trie of what is replaced, then the
// replacements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/text/tokenizer_work.h"

namespace kvart::text {

class CharsMap {
 public:
  CharsMap() = default;  // replaces nothing

  // `bytes`: the trie's size in bytes (32 bits, little endian), the trie's units of 32 bits, then
  // NUL-terminated replacements. Refused, with `field` in front: a trie that is longer than the
  // bytes or not of whole units, replacements whose last one has no end.
  static Result<CharsMap> create(std::string_view bytes, const std::string& field);

  struct Match {
    size_t length_bytes = 0;
    std::string_view replacement;
  };
  // The longest (or the shortest) beginning of `text` that the map replaces. Whatever the units
  // say, nothing outside them is read. The way through the trie and the replacement's length are
  // charged to `work`; nothing is found where they are too much.
  std::optional<Match> find_longest(std::string_view text, EncodeWork& work) const {
    return find(text, false, work);
  }
  std::optional<Match> find_shortest(std::string_view text, EncodeWork& work) const {
    return find(text, true, work);
  }

 private:
  std::optional<Match> find(std::string_view text, bool shortest, EncodeWork& work) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace kvart::text
