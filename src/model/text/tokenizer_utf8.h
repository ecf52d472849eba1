// UTF-8 at the two edges of a tokenizer (repairing what comes in, holding back half characters on
// the way out), small helpers on text, and the byte alphabet that byte-level vocabularies write
// their tokens in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/text/tokenizer_work.h"

namespace kvart::text {

inline constexpr char32_t replacement_character = 0xFFFD;

// Bytes [begin, end) of a text.
struct Span {
  size_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

struct CodePoint {
  char32_t value = replacement_character;
  size_t length_bytes = 1;
  bool valid = false;  // false: one byte that belongs to no character
};

// The character that starts at offset, by the lead byte's length alone: overlong forms and
// surrogates count as valid, values above U+10FFFF don't. Precondition: offset < text.size().
CodePoint decode_loosely(std::string_view text, size_t offset);

void append_utf8(char32_t value, std::string& out);

// What a tokenizer sees of `text`: every byte that decode_loosely calls invalid becomes U+FFFD,
// overlong forms become the short ones. Valid text comes back unchanged.
std::string repair_input(std::string_view text);

// Appends the complete characters of `bytes` to `out`, one U+FFFD for each maximal invalid part.
// Returns how many bytes at the end (at most 3) were left out because they may still grow to a
// character.
size_t append_repaired(std::string_view bytes, std::string& out);

// Appends `text` with every occurrence of `from`, which isn't empty, replaced by `to`; false where
// that is too much work, with only a part appended.
bool append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     EncodeWork& work, std::string& out);

// Steps of EncodeWork to compare `text` with what is at one place.
constexpr uint64_t comparison_steps(std::string_view text) {
  return 1 + text.size() / 256;
}

// Unicode's White_Space.
bool is_white_space(char32_t value);

// The byte alphabet: printable Latin-1 bytes stand for themselves, the 68 others for U+0100 and up,
// in order.
inline constexpr size_t byte_symbol_count = 256 + 68;

constexpr std::array<char32_t, 256> make_byte_symbols() {
  std::array<char32_t, 256> symbols{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    symbols[byte] = printable ? byte : next++;
  }
  return symbols;
}
inline constexpr std::array<char32_t, 256> byte_symbols = make_byte_symbols();
static_assert(byte_symbols[0xAD] == byte_symbol_count - 1);

// The bytes that a token written in the byte alphabet stands for; false if it holds any other
// character.
bool append_symbol_bytes(std::string_view token, std::string& out);

}  // namespace kvart::text
