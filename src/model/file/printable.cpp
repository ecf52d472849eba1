// Escaping of names for messages: see printable.h.
#include "model/file/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace kvart {

namespace {

struct CodePoint {
  uint32_t value = 0;
  size_t length = 0;  // 0: the bytes are not a well-formed sequence
};

// Decodes the sequence at the start of `text` (not empty).
CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return {};
  uint32_t value = first & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  const uint32_t smallest = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < smallest || value > 0x10FFFF || surrogate) return {};
  return {value, length};
}

bool visible(uint32_t c) {
  if (c < 0x20 || c == '\\' || (c >= 0x7F && c < 0xA0)) return false;
  const bool hides_or_reorders = c == 0xAD || c == 0x061C || (c >= 0x200B && c <= 0x200F) ||
                                 (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
                                 c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) ||
                                 (c >= 0xE0000 && c <= 0xE0FFF);
  return !hides_or_reorders;
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  std::string_view rest = text;
  while (!rest.empty()) {
    const CodePoint point = first_code_point(rest);
    const size_t length = point.length == 0 ? 1 : point.length;
    if (text.size() - rest.size() + length > max_bytes) {
      return out + fmt::format("... ({} bytes)", text.size());
    }
    if (point.length != 0 && visible(point.value)) {
      out += rest.substr(0, length);
    } else {
      for (size_t i = 0; i < length; ++i) {
        out += fmt::format("\\x{:02X}", static_cast<uint8_t>(rest[i]));
      }
    }
    rest.remove_prefix(length);
  }
  return out;
}

}  // namespace kvart
