// The interface of a model: from a piece of text to token ids, and what all models share.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/text/tokenizer_work.h"

namespace kvart::text {

inline constexpr int32_t no_token = -1;

class PieceEncoder {
 public:
  virtual ~PieceEncoder() = default;
  // Appends the tokens of `piece`; in any order where that takes more than `work` has.
  virtual void encode(std::string_view piece, EncodeWork& work,
                      std::vector<int32_t>& out) const = 0;
};

// Text to id, for looking up without making a string.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

inline int32_t find_token(const TokenIds& ids, std::string_view text) {
  const auto found = ids.find(text);
  return found == ids.end() ? no_token : found->second;
}

// What becomes of characters that have no token of their own.
struct Fallback {
  std::array<int32_t, 256> byte_tokens{};  // no_token where there is none, or where none is wanted
  int32_t unknown = no_token;
  bool fuse_unknown = false;

  // The bytes' tokens where each has one; else the unknown token, once for a run of unknown
  // characters if they fuse (`after_unknown` says whether this follows one, and is updated); else
  // nothing. False: nothing.
  bool append(std::string_view character, bool& after_unknown, std::vector<int32_t>& out) const {
    bool covered = true;
    for (const char c : character) {
      covered = covered && byte_tokens[static_cast<uint8_t>(c)] != no_token;
    }
    if (covered) {
      for (const char c : character) out.push_back(byte_tokens[static_cast<uint8_t>(c)]);
      after_unknown = false;
      return true;
    }
    if (unknown == no_token) return false;
    if (!fuse_unknown || !after_unknown) out.push_back(unknown);
    after_unknown = true;
    return true;
  }
};

}  // namespace kvart::text
