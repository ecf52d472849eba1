// Finds control tokens' names by their first byte and their lengths.
#include "model/control_names.h"

#include <algorithm>
#include <functional>

namespace kvart {

ControlNames::ControlNames(const Tokenizer& tokenizer) {
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    if (!tokenizer.is_control(token)) continue;
    const std::string_view name = tokenizer.token_bytes(token);
    if (name.empty() || !names_.emplace(name).second) continue;
    lengths_[static_cast<uint8_t>(name[0])].push_back(name.size());
  }
  for (std::vector<size_t>& lengths : lengths_) {
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  }
}

size_t ControlNames::longest_at(std::string_view text) const {
  for (const size_t length : lengths_[static_cast<uint8_t>(text[0])]) {
    if (length <= text.size() && names_.contains(std::string(text.substr(0, length)))) {
      return length;
    }
  }
  return 0;
}

std::string ControlNames::mark(std::string_view text, std::string_view begin,
                               std::string_view end) const {
  std::string marked;
  while (!text.empty()) {
    const size_t length = longest_at(text);
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
