// Checks of a precompiled map and walks through its trie.
#include "model/text/tokenizer_charsmap.h"

#include <fmt/format.h>

#include <cstring>

namespace kvart::text {
namespace {

// A unit of the trie: bits 0 to 7 the label, bit 8 whether a value hangs below, bits 10 to 30 the
// offset to its children, in units of 256 where bit 9 is set. A value's unit has bit 31.
bool has_value(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t label(uint32_t unit) {
  return unit & (0x80000000u | 0xFFu);
}
uint32_t offset(uint32_t unit) {
  return (unit >> 10) << ((unit & 0x200u) >> 6);
}
uint32_t value(uint32_t unit) {
  return unit & 0x7FFFFFFFu;
}

}  // namespace

Result<CharsMap> CharsMap::create(std::string_view bytes, const std::string& field) {
  CharsMap map;
  if (bytes.empty()) return map;
  const auto refuse = [&](const std::string& reason) {
    return Error{ErrorCode::invalid_file, fmt::format("{}: {}", field, reason)};
  };
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof(trie_bytes)) {
    return refuse(fmt::format("{} bytes; expected 4 at least", bytes.size()));
  }
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  bytes.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes >= bytes.size()) {
    return refuse(fmt::format("a trie of {} bytes with {} bytes left for it and the replacements",
                              trie_bytes, bytes.size()));
  }
  if (bytes.back() != '\0') return refuse("the last replacement has no end");
  map.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(map.units_.data(), bytes.data(), trie_bytes);
  map.replacements_ = bytes.substr(trie_bytes);
  return map;
}

std::optional<CharsMap::Match> CharsMap::find(std::string_view text, bool shortest,
                                              EncodeWork& work) const {
  if (units_.empty()) return std::nullopt;
  std::optional<uint32_t> replacement;
  size_t length_bytes = 0;
  uint32_t node = offset(units_[0]);
  size_t i = 0;
  while (i < text.size()) {
    const auto byte = static_cast<uint8_t>(text[i++]);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_value(unit)) continue;
    if (node >= units_.size() || value(units_[node]) >= replacements_.size()) break;
    replacement = value(units_[node]);
    length_bytes = i;
    if (shortest) break;
  }
  if (!replacement) {
    work.charge(i);
    return std::nullopt;
  }
  // The last byte is NUL: there is an end.
  const Match match{length_bytes, std::string_view(replacements_.data() + *replacement)};
  if (!work.charge(i + match.replacement.size())) return std::nullopt;
  return match;
}

}  // namespace kvart::text
