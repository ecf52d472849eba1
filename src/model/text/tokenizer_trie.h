// A trie of byte strings: which names begin at a place in a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "model/text/tokenizer_encoder.h"

namespace kvart::text {

class TokenTrie {
 public:
  static constexpr uint32_t root = 0, nowhere = ~uint32_t{0};

  TokenTrie() : TokenTrie(std::vector<std::pair<std::string_view, int32_t>>()) {}
  // The first of equal names counts; empty ones don't. Values >= 0.
  explicit TokenTrie(std::vector<std::pair<std::string_view, int32_t>> names);

  // The node that `byte` leads to, or nowhere.
  uint32_t next(uint32_t node, uint8_t byte) const;
  // The value of the name that ends at the node, or no_token.
  int32_t value(uint32_t node) const { return nodes_[node].value; }

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t child_count = 0;
    uint8_t label = 0;
    int32_t value = no_token;
  };

  std::vector<Node> nodes_;          // the children of a node lie together, by label
  std::vector<uint32_t> from_root_;  // by byte
};

}  // namespace kvart::text
