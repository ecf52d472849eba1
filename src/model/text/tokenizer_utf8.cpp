// Loose decoding of input, strict repair of output, and the byte alphabet's inverse.
#include "model/text/tokenizer_utf8.h"

namespace kvart::text {
namespace {

constexpr std::array<int16_t, byte_symbol_count> make_symbol_bytes() {
  std::array<int16_t, byte_symbol_count> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) bytes[byte_symbols[static_cast<size_t>(byte)]] = byte;
  return bytes;
}
constexpr std::array<int16_t, byte_symbol_count> symbol_bytes = make_symbol_bytes();

uint8_t byte_at(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

struct LeadByte {
  size_t length_bytes = 0;  // 0: can't start a character
  char32_t bits = 0;
};

LeadByte read_lead(uint8_t lead) {
  if (lead < 0x80) return {1, lead};
  if (lead < 0xC0 || lead >= 0xF8) return {};
  if (lead < 0xE0) return {2, lead & 0x1Fu};
  if (lead < 0xF0) return {3, lead & 0x0Fu};
  return {4, lead & 0x07u};
}

// Range of the second byte after `lead` in well-formed UTF-8: no overlong forms, surrogates or
// values above U+10FFFF.
bool second_byte_fits(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return second >= 0x80 && second <= 0xBF;
  }
}

}  // namespace

CodePoint decode_loosely(std::string_view text, size_t offset) {
  LeadByte lead = read_lead(byte_at(text, offset));
  if (lead.length_bytes == 0 || lead.length_bytes > text.size() - offset) return {};
  for (size_t i = 1; i < lead.length_bytes; ++i) {
    const uint8_t next = byte_at(text, offset + i);
    if ((next & 0xC0) != 0x80) return {};
    lead.bits = lead.bits << 6 | (next & 0x3Fu);
  }
  if (lead.bits > 0x10FFFF) return {};
  return {lead.bits, lead.length_bytes, true};
}

void append_utf8(char32_t value, std::string& out) {
  const auto continuation = [](char32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (value < 0x80) {
    out.push_back(static_cast<char>(value));
  } else if (value < 0x800) {
    out.push_back(static_cast<char>(0xC0 | value >> 6));
    out.push_back(continuation(value));
  } else if (value < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | value >> 12));
    out.push_back(continuation(value >> 6));
    out.push_back(continuation(value));
  } else {
    out.push_back(static_cast<char>(0xF0 | value >> 18));
    out.push_back(continuation(value >> 12));
    out.push_back(continuation(value >> 6));
    out.push_back(continuation(value));
  }
}

std::string repair_input(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = decode_loosely(text, i);
    append_utf8(point.value, repaired);
    i += point.length_bytes;
  }
  return repaired;
}

size_t append_repaired(std::string_view bytes, std::string& out) {
  for (size_t i = 0; i < bytes.size();) {
    const uint8_t lead = byte_at(bytes, i);
    size_t expected = read_lead(lead).length_bytes;
    if (lead == 0xC0 || lead == 0xC1 || lead > 0xF4) expected = 0;
    size_t good = expected == 0 ? 0 : 1;
    while (good < expected && i + good < bytes.size()) {
      const uint8_t next = byte_at(bytes, i + good);
      const bool fits = good == 1 ? second_byte_fits(lead, next) : (next & 0xC0) == 0x80;
      if (!fits) break;
      ++good;
    }
    if (good > 0 && good == expected) {
      out.append(bytes.substr(i, good));
    } else if (good > 0 && i + good == bytes.size()) {
      return good;
    } else {
      append_utf8(replacement_character, out);
    }
    i += good > 0 ? good : 1;
  }
  return 0;
}

bool append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     EncodeWork& work, std::string& out) {
  if (!work.charge(text.size() * comparison_steps(from))) return false;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from)) {
    if (!work.charge(1 + to.size())) return false;
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  out += text;
  return true;
}

bool is_white_space(char32_t value) {
  return (value >= 0x09 && value <= 0x0D) || value == 0x20 || value == 0x85 || value == 0xA0 ||
         value == 0x1680 || (value >= 0x2000 && value <= 0x200A) || value == 0x2028 ||
         value == 0x2029 || value == 0x202F || value == 0x205F || value == 0x3000;
}

bool append_symbol_bytes(std::string_view token, std::string& out) {
  const size_t size_before = out.size();
  for (size_t i = 0; i < token.size();) {
    const CodePoint point = decode_loosely(token, i);
    if (!point.valid || point.value >= byte_symbol_count || symbol_bytes[point.value] < 0) {
      out.resize(size_before);
      return false;
    }
    out.push_back(static_cast<char>(symbol_bytes[point.value]));
    i += point.length_bytes;
  }
  return true;
}

}  // namespace kvart::text
