// Text as Python sees it: UTF-8, white space, case, and how numbers and strings are read and
// written.
#include "model/text/jinja_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "model/file/printable.h"

namespace kvart::jinja {

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const std::size_t size = first < 0xc2   ? 1
                           : first < 0xe0 ? 2
                           : first < 0xf0 ? 3
                           : first < 0xf5 ? 4
                                          : 1;
  char32_t c = size == 1 ? first : first & (0x7f >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if (at + i >= text.size() || (byte(at + i) & 0xc0) != 0x80) {
      ++at;
      return first;
    }
    c = c << 6 | (byte(at + i) & 0x3f);
  }
  at += size;
  return c;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  constexpr std::array<int, 4> lead = {0, 0xc0, 0xe0, 0xf0};
  out +=
      static_cast<char>(lead[static_cast<std::size_t>(more)] | static_cast<int>(c >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) {
    out += static_cast<char>(0x80 | (static_cast<int>(c >> (6 * i)) & 0x3f));
  }
}

std::size_t count_code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) {
    next_code_point(text, at);
  }
  return count;
}

std::size_t code_point_offset(std::string_view text, std::size_t count) {
  std::size_t at = 0;
  for (; count > 0 && at < text.size(); --count) {
    next_code_point(text, at);
  }
  return at;
}

char32_t previous_code_point(std::string_view text, std::size_t& at) {
  const std::size_t end = at;
  std::size_t start = end - 1;
  while (start > 0 && end - start < 4 && (text[start] & 0xc0) == 0x80) {
    --start;
  }
  at = start;
  const char32_t c = next_code_point(text, start);
  if (start == end) {
    return c;
  }
  at = end - 1;  // a byte of its own
  return static_cast<unsigned char>(text[at]);
}

std::vector<std::size_t> code_point_offsets(std::string_view text, std::size_t count) {
  std::vector<std::size_t> offsets = {0};
  offsets.reserve(count + 1);
  for (std::size_t at = 0; at < text.size();) {
    next_code_point(text, at);
    offsets.push_back(at);
  }
  return offsets;
}

std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from) {
  if (from > text.size()) {
    return std::string_view::npos;
  }
  if (wanted.empty()) {
    return from;
  }
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::size_t space_prefix(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size()) {
    std::size_t next = end;
    if (!is_space(next_code_point(text, next))) {
      break;
    }
    end = next;
  }
  return end;
}

std::size_t space_suffix(std::string_view text) {
  std::size_t start = text.size();
  while (start > 0) {
    std::size_t previous = start;
    if (!is_space(previous_code_point(text, previous))) {
      break;
    }
    start = previous;
  }
  return text.size() - start;
}

namespace {

// From one case to the other: `shift` is what lower case adds; `step` 2 marks ranges where the two
// alternate.
struct CaseRange {
  char32_t first;  // of the upper case letters
  char32_t last;
  int shift;
  int step;
};

constexpr CaseRange case_ranges[] = {
    {'A', 'Z', 32, 1},      {0xc0, 0xd6, 32, 1},     {0xd8, 0xde, 32, 1},
    {0x100, 0x12e, 1, 2},   {0x132, 0x136, 1, 2},    {0x139, 0x147, 1, 2},
    {0x14a, 0x176, 1, 2},   {0x178, 0x178, -121, 1}, {0x179, 0x17d, 1, 2},
    {0x386, 0x386, 38, 1},  {0x388, 0x38a, 37, 1},   {0x38c, 0x38c, 64, 1},
    {0x38e, 0x38f, 63, 1},  {0x391, 0x3a1, 32, 1},   {0x3a3, 0x3ab, 32, 1},
    {0x400, 0x40f, 80, 1},  {0x410, 0x42f, 32, 1},   {0x460, 0x480, 1, 2},
    {0x48a, 0x4be, 1, 2},   {0x4d0, 0x52e, 1, 2},    {0x1e00, 0x1e94, 1, 2},
    {0x1ea0, 0x1efe, 1, 2}, {0xff21, 0xff3a, 32, 1},
};

char32_t shifted(char32_t c, bool up) {
  for (const CaseRange& range : case_ranges) {
    const char32_t lower_first = range.first + static_cast<char32_t>(up ? range.shift : 0);
    const char32_t lower_last = range.last + static_cast<char32_t>(up ? range.shift : 0);
    if (c >= lower_first && c <= lower_last &&
        (c - lower_first) % static_cast<char32_t>(range.step) == 0) {
      return c + static_cast<char32_t>(up ? -range.shift : range.shift);
    }
  }
  return c;
}

}  // namespace

bool is_cased(char32_t c) {
  if (c < 0x80) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }
  return c == 0xdf || shifted(c, true) != c || shifted(c, false) != c;
}

namespace {

std::string with_case(std::string_view text, bool up) {
  std::string out;
  out.reserve(text.size());
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    if (up && c == 0xdf) {
      out += "SS";
      continue;
    }
    if (!up && c == 0x3a3) {  // a sigma at a word's end has a letter of its own
      std::size_t after = at;
      const bool ends = after >= text.size() || !is_cased(next_code_point(text, after));
      append_utf8(out, in_word && ends ? 0x3c2 : 0x3c3);
      in_word = true;
      continue;
    }
    if (c < 0x80) {
      const bool other_case = up ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z';
      in_word = other_case || (up ? c >= 'A' && c <= 'Z' : c >= 'a' && c <= 'z');
      out += static_cast<char>(other_case ? c ^ 0x20 : c);
      continue;
    }
    in_word = is_cased(c);
    const char32_t changed = up && c == 0xb5 ? 0x39c : up && c == 0x3c2 ? 0x3a3 : shifted(c, up);
    if (changed == c) {
      out += text.substr(start, at - start);
    } else {
      append_utf8(out, changed);
    }
  }
  return out;
}

}  // namespace

std::string to_upper(std::string_view text) {
  return with_case(text, true);
}
std::string to_lower(std::string_view text) {
  return with_case(text, false);
}

namespace {

bool parse_code(std::string_view digits, int base, char32_t& code) {
  std::uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  code = value;
  return error == std::errc() && end == digits.data() + digits.size() && value < 0x110000 &&
         (value < 0xd800 || value > 0xdfff);
}

// The escape whose letter is at body[at]; moves past it.
bool append_escape(std::string_view body, std::size_t& at, std::string& out) {
  constexpr std::string_view letters = "abfnrtv\\'\"\n";
  constexpr std::string_view means = "\a\b\f\n\r\t\v\\'\"";
  const char c = body[at++];
  if (const std::size_t known = letters.find(c); known != std::string_view::npos) {
    out += means.substr(std::min(known, means.size()), 1);  // an escaped newline means nothing
    return true;
  }
  std::size_t size = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  int base = 16;
  if (c >= '0' && c <= '7') {
    --at;
    base = 8;
    while (size < 3 && at + size < body.size() && body[at + size] >= '0' &&
           body[at + size] <= '7') {
      ++size;
    }
  } else if (c == 'N') {
    return false;
  } else if (size == 0) {
    (out += '\\') += c;
    return true;
  }
  char32_t code = 0;
  if (at + size > body.size() || !parse_code(body.substr(at, size), base, code)) {
    return false;
  }
  at += size;
  append_utf8(out, code);
  return true;
}

}  // namespace

std::optional<std::string> unescape(std::string_view body) {
  std::string out;
  for (std::size_t at = 0; at < body.size();) {
    if (body[at] != '\\' || at + 1 >= body.size()) {
      out += body[at++];
    } else if (!append_escape(body, ++at, out)) {
      return std::nullopt;
    }
  }
  return out;
}

namespace {

// Without the single underscores that Python allows between digits; nothing if they are elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() ||
               !std::isalnum(static_cast<unsigned char>(text[i - 1])) ||
               !std::isalnum(static_cast<unsigned char>(text[i + 1]))) {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace

std::optional<Value> parse_integer(std::string_view text, int base) {
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const std::optional<std::string> digits = without_underscores(text);
  if (!digits || digits->empty()) {
    return std::nullopt;
  }
  Integer value = 0;
  for (const char c : *digits) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 10
                      : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                             : 99;
    if (digit >= base || __builtin_mul_overflow(value, Integer(base), &value) ||
        __builtin_sub_overflow(value, Integer(digit), &value)) {
      return std::nullopt;
    }
  }
  if (!negative && __builtin_sub_overflow(Integer(0), value, &value)) {
    return std::nullopt;
  }
  return Value::integer(value);
}

std::optional<Value> parse_float(std::string_view text) {
  std::optional<std::string> digits = without_underscores(text);
  if (!digits || digits->empty()) {
    return std::nullopt;
  }
  std::string_view body = *digits;
  const bool negative = body[0] == '-';
  if (body[0] == '-' || body[0] == '+') {
    body.remove_prefix(1);
  }
  const std::string lower = to_lower(body);
  double value = 0;
  if (lower == "inf" || lower == "infinity") {
    value = INFINITY;
  } else if (lower == "nan") {
    value = NAN;
  } else {
    if (body.empty() || (body[0] != '.' && (body[0] < '0' || body[0] > '9'))) {
      return std::nullopt;
    }
    const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), value);
    if (end != body.data() + body.size() || error == std::errc::invalid_argument) {
      return std::nullopt;
    }
    if (error == std::errc::result_out_of_range) {
      // Too large or too small for a double: the sign of the exponent tells which.
      value = lower.find("e-") != std::string::npos ? 0 : INFINITY;
    }
  }
  return Value::floating(negative ? -value : value);
}

std::string in_quotes(std::string_view word) {
  return "'" + printable(word) + "'";
}

std::string write_integer(Integer value) {
  using Unsigned = unsigned __int128;
  Unsigned rest =
      value < 0 ? Unsigned(0) - static_cast<Unsigned>(value) : static_cast<Unsigned>(value);
  std::string out;
  do {
    out += static_cast<char>('0' + static_cast<int>(rest % 10));
    rest /= 10;
  } while (rest != 0);
  if (value < 0) {
    out += '-';
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::string write_float(double value) {
  if (std::isnan(value) || std::isinf(value)) {
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::abs(value),
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t e = text.find('e');
  int exponent = 0;
  const std::size_t exponent_at = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + exponent_at, end, exponent);
  std::string digits(1, text[0]);
  if (e > 1) {
    digits += text.substr(2, e - 2);
  }
  std::string out = std::signbit(value) ? "-" : "";
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    out += count > 1 ? std::string(".") + digits.substr(1) : "";
    out += exponent < 0 ? "e-" : "e+";
    out += std::abs(exponent) < 10 ? "0" : "";
    return out + std::to_string(std::abs(exponent));
  }
  if (exponent < 0) {
    return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  }
  if (count <= exponent + 1) {
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  }
  const auto whole = static_cast<std::size_t>(exponent + 1);
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace kvart::jinja
