// A template's source as tokens: white space control between tags, words and literals inside them.
#include "model/text/jinja_lexer.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "model/text/jinja_text.h"

namespace kvart::jinja {

Error template_error(ErrorCode code, int line, const std::string& what) {
  return Error{code, "chat template, line " + std::to_string(line) + ": " + what};
}

namespace {

using Kind = Token::Kind;

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      i += i + 1 < source.size() && source[i + 1] == '\n' ? 1 : 0;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') {
    out.pop_back();
  }
  return out;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || (c & 0x80) != 0;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size() && !error_) {
      outside();
    }
    push(Kind::end, "");
    if (error_) {
      return *error_;
    }
    return std::move(tokens_);
  }

 private:
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  bool follows(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void fail(const std::string& what, ErrorCode code = ErrorCode::invalid_file) {
    if (!error_) {
      error_ = template_error(code, line_, what);
    }
    at_ = source_.size();
  }

  void push(Kind kind, std::string text, Value number = {}) {
    constexpr std::size_t tokens_max = 250'000;
    if (tokens_.size() >= tokens_max) {
      fail("more names, signs and texts than the limit of " + std::to_string(tokens_max));
      return;
    }
    tokens_.push_back({kind, line_, std::move(text), std::move(number)});
  }

  void advance(std::size_t bytes) {
    bytes = std::min(bytes, source_.size() - at_);
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes),
                                         '\n'));
    at_ += bytes;
  }

  void skip_space() { advance(space_prefix(rest())); }

  // Text up to the next tag, and that tag's begin.
  void outside() {
    std::size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push_text(rest());
        at_ = source_.size();
        return;
      }
      const char c = source_[tag + 1];
      if (c == '{' || c == '%' || c == '#') {
        break;
      }
      ++tag;
    }
    const char type = source_[tag + 1];
    const std::string_view text = rest().substr(0, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool line_start = line_start_;
    push_text(strip_before_tag(text, type, sign, line_start));
    advance(tag - at_ + 2);
    if (sign == '-' || sign == '+') {
      advance(1);
    }
    line_start_ = false;
    if (type == '#') {
      comment();
    } else if (type == '%' && raw_block()) {
      return;
    } else {
      inside(type == '%');
    }
  }

  void push_text(std::string_view text) {
    if (!text.empty()) {
      push(Kind::text, std::string(text));
    }
  }

  static std::string_view strip_before_tag(std::string_view text, char type, char sign,
                                           bool line_start) {
    if (sign == '-') {
      return text.substr(0, text.size() - space_suffix(text));
    }
    if (sign == '+' || type == '{') {
      return text;
    }
    const std::size_t newline = text.rfind('\n');
    const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    const std::string_view last = text.substr(start);
    if ((start > 0 || line_start) && space_prefix(last) == last.size()) {
      return text.substr(0, start);
    }
    return text;
  }

  void comment() {
    const std::size_t close = source_.find("#}", at_);
    if (close == std::string::npos) {
      fail("a comment that does not end: expected '#}'");
      return;
    }
    // The sign belongs to the tag, unless the comment's begin has used it.
    const char sign = close > at_ ? source_[close - 1] : '\0';
    advance(close - at_);
    close_tag(sign);
  }

  // After the sign before it, a tag's two closing characters and what they swallow.
  void close_tag(char sign) {
    advance(2);
    if (sign == '-') {
      const std::size_t before = at_;
      skip_space();
      line_start_ = at_ > before && source_[at_ - 1] == '\n';
    } else if (sign != '+' && peek() == '\n') {
      advance(1);
      line_start_ = true;
    }
  }

  // Whether "raw" and the block's end follow; then its text is taken as it is.
  bool raw_block() {
    const std::size_t start = at_;
    std::size_t i = at_ + space_prefix(rest());
    const auto word = [this, &i](std::string_view w) {
      const bool found = source_.compare(i, w.size(), w) == 0;
      i += found ? w.size() : 0;
      return found;
    };
    if (!word("raw")) {
      return false;
    }
    i += space_prefix(std::string_view(source_).substr(i));
    const bool strip = word("-%}");
    if (!strip && !word("%}")) {
      return false;
    }
    advance(i - start);
    if (strip) {
      skip_space();
    }
    for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      i = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      i += space_prefix(std::string_view(source_).substr(i));
      if (!word("endraw")) {
        continue;
      }
      i += space_prefix(std::string_view(source_).substr(i));
      const char end_sign = i < source_.size() ? source_[i] : '\0';
      i += end_sign == '-' || end_sign == '+' ? 1 : 0;
      if (source_.compare(i, 2, "%}") == 0) {
        push_text(strip_before_tag(rest().substr(0, tag - at_), '%', sign, false));
        advance(i - at_);
        close_tag(end_sign);
        return true;
      }
    }
    fail("a 'raw' block that does not end");
    return true;
  }

  // The tokens of one tag, up to and with its end.
  void inside(bool block) {
    push(block ? Kind::block_begin : Kind::print_begin, "");
    const std::string_view close = block ? "%}" : "}}";
    std::string open;  // brackets not yet closed: a brace among them is no end of the tag
    while (!error_) {
      skip_space();
      if (at_ >= source_.size()) {
        fail(std::string("a tag that does not end: expected '") + std::string(close) + "'");
        return;
      }
      const char c = peek();
      const bool signed_end =
          (c == '-' || (c == '+' && block)) && rest().substr(1).starts_with(close);
      if (open.empty() && (signed_end || follows(close))) {
        push(block ? Kind::block_end : Kind::print_end, "");
        advance(signed_end ? 1 : 0);
        close_tag(signed_end ? c : block ? '\0' : '+');
        return;
      }
      if (is_digit(c)) {
        number();
      } else if (is_name_start(c)) {
        name();
      } else if (c == '"' || c == '\'') {
        string();
      } else {
        sign(open);
      }
    }
  }

  void name() {
    std::size_t size = 1;
    while (is_name_start(peek(size)) || is_digit(peek(size))) {
      ++size;
    }
    push(Kind::name, std::string(rest().substr(0, size)));
    advance(size);
  }

  void sign(std::string& open) {
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
      if (follows(two)) {
        push(Kind::sign, std::string(two));
        advance(2);
        return;
      }
    }
    const char c = peek();
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      fail("unexpected character " + in_quotes(std::string_view(&c, 1)));
      return;
    }
    if (c == '(' || c == '[' || c == '{') {
      open += c;
    } else if (c == ')' || c == ']' || c == '}') {
      const char pair = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != pair) {
        fail(std::string("unexpected '") + c + "'");
        return;
      }
      open.pop_back();
    }
    push(Kind::sign, std::string(1, c));
    advance(1);
  }

  // The digits of `base` at `from`, underscores between them allowed, appended to `digits`; bytes
  // taken.
  std::size_t digits_at(std::size_t from, int base, std::string& digits) const {
    const auto is_of_base = [base](char c) {
      const char low = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      return is_digit(c) ? c - '0' < base : base == 16 && low >= 'a' && low <= 'f';
    };
    std::size_t size = 0;
    while (is_of_base(peek(from + size)) ||
           (size > 0 && peek(from + size) == '_' && is_of_base(peek(from + size + 1)))) {
      if (peek(from + size) != '_') {
        digits += peek(from + size);
      }
      ++size;
    }
    return size;
  }

  void number() {
    const char kind = static_cast<char>(std::tolower(static_cast<unsigned char>(peek(1))));
    const int base = peek() != '0' ? 10 : kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    std::string digits;
    std::size_t size = base == 10 ? 0 : 2;
    size += digits_at(size, base, digits);
    bool floating = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // `items.0.1` has no float
    std::string fraction = ".";
    if (base == 10 && !after_dot && peek(size) == '.' && is_digit(peek(size + 1))) {
      size += 1 + digits_at(size + 1, 10, fraction);
      digits += fraction;
      floating = true;
    }
    if (base == 10 && (peek(size) == 'e' || peek(size) == 'E')) {
      const std::size_t sign_size = peek(size + 1) == '+' || peek(size + 1) == '-' ? 1 : 0;
      std::string exponent = sign_size == 1 && peek(size + 1) == '-' ? "e-" : "e";
      if (is_digit(peek(size + 1 + sign_size))) {
        size += 1 + sign_size;
        size += digits_at(size, 10, exponent);
        digits += exponent;
        floating = true;
      }
    }
    const std::optional<Value> value = floating ? parse_float(digits) : parse_integer(digits, base);
    if (!value || is_name_start(peek(size)) ||
        (base == 10 && !floating && size > 1 && peek() == '0' &&
         digits.find_first_not_of('0') != std::string::npos)) {
      fail("a number that can't be read: " + in_quotes(rest().substr(0, size + 1)));
      return;
    }
    push(Kind::number, "", *value);
    advance(size);
  }

  void string() {
    const char quote = peek();
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) {
      end += source_[end] == '\\' ? 2 : 1;
    }
    if (end >= source_.size()) {
      fail("a string that does not end");
      return;
    }
    const std::string_view body = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    std::optional<std::string> text = unescape(body);
    if (!text) {
      fail("an escape in a string that can't be read", ErrorCode::unsupported);
      return;
    }
    push(Kind::string, std::move(*text));
    advance(end + 1 - at_);
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // nothing but what a tag swallowed since the last newline
  std::vector<Token> tokens_;
  std::optional<Error> error_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace kvart::jinja
