// Marks control tokens' names with the tokenizers' own trie.
#include "model/control_names.h"

#include <utility>
#include <vector>

namespace kvart {

namespace {

text::TokenTrie trie_of(const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string_view, int32_t>> names;
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    if (tokenizer.is_control(token)) names.emplace_back(tokenizer.token_bytes(token), token);
  }
  return text::TokenTrie(std::move(names));
}

// Bytes of the longest name that `from` begins with; 0: of none.
size_t longest_name(const text::TokenTrie& names, std::string_view from) {
  size_t longest = 0;
  uint32_t node = text::TokenTrie::root;
  for (size_t i = 0; i < from.size(); ++i) {
    node = names.next(node, static_cast<uint8_t>(from[i]));
    if (node == text::TokenTrie::nowhere) break;
    if (names.value(node) != text::no_token) longest = i + 1;
  }
  return longest;
}

}  // namespace

ControlNames::ControlNames(const Tokenizer& tokenizer) : names_(trie_of(tokenizer)) {}

std::string ControlNames::mark(std::string_view text, std::string_view begin,
                               std::string_view end) const {
  std::string marked;
  while (!text.empty()) {
    const size_t length = longest_name(names_, text);
    if (length == 0) {
      marked += text[0];
      text.remove_prefix(1);
      continue;
    }
    marked.append(begin).append(text.substr(0, length)).append(end);
    text.remove_prefix(length);
  }
  return marked;
}

}  // namespace kvart
