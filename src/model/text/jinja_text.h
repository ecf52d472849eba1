// Text as Python sees it: code points, white space, case, literals, and how numbers and strings are
// written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/jinja_value.h"

namespace kvart::jinja {

// One code point of `text` at byte `at`, which moves past it; a byte that is no UTF-8 counts as
// one.
char32_t next_code_point(std::string_view text, std::size_t& at);
void append_utf8(std::string& out, char32_t code_point);
// The one that ends at byte `at` > 0, which moves to its start.
char32_t previous_code_point(std::string_view text, std::size_t& at);
std::size_t count_code_points(std::string_view text);
// Where the code point of that number begins; the size if there are no more than `count`.
std::size_t code_point_offset(std::string_view text, std::size_t count);
// Byte offsets of each of the `count` code points, and the size at the end.
std::vector<std::size_t> code_point_offsets(std::string_view text, std::size_t count);

// The first place of `wanted` at or after `from`, in time linear in both; npos if there is none.
std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from = 0);

bool is_space(char32_t c);
std::size_t space_prefix(std::string_view text);  // bytes of white space at its start
std::size_t space_suffix(std::string_view text);  // and at its end

// Case of the Latin, Greek and Cyrillic letters; others stay.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
bool is_cased(char32_t c);

// A string literal's body with its escapes resolved; nothing when an escape is wrong or unknown.
std::optional<std::string> unescape(std::string_view body);

// Numbers as Python's int() and float() read them, without the white space around.
std::optional<Value> parse_integer(std::string_view digits, int base);
std::optional<Value> parse_float(std::string_view text);

std::string in_quotes(std::string_view word);  // printable, in single quotes, for messages
std::string write_integer(Integer value);
std::string write_float(double value);  // the shortest text that reads back the same

}  // namespace kvart::jinja
