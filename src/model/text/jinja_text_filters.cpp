// Filters that make a text or a number of a value.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "model/text/jinja_builtins.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

std::string_view strip(std::string_view text, std::string_view characters, bool left, bool right) {
  if (characters.empty()) {
    text.remove_prefix(left ? space_prefix(text) : 0);
    text.remove_suffix(right ? space_suffix(text) : 0);
    return text;
  }
  std::vector<char32_t> set;
  for (std::size_t at = 0; at < characters.size();) {
    set.push_back(next_code_point(characters, at));
  }
  std::sort(set.begin(), set.end());
  const auto listed = [&set](char32_t c) { return std::binary_search(set.begin(), set.end(), c); };
  for (std::size_t at = 0; left && !text.empty(); at = 0) {
    if (!listed(next_code_point(text, at))) {
      break;
    }
    text.remove_prefix(at);
  }
  while (right && !text.empty()) {
    std::size_t at = text.size();
    if (!listed(previous_code_point(text, at))) {
      break;
    }
    text = text.substr(0, at);
  }
  return text;
}

Value replace_text(Runtime& runtime, std::string_view text, std::string_view old,
                   std::string_view with, Integer count) {
  TextBuilder out(runtime);
  std::size_t at = 0;
  if (old.empty()) {  // between all code points, and at both ends
    for (; count != 0 && !runtime.failed(); --count) {
      out << with;
      if (at >= text.size()) {
        break;
      }
      const std::size_t start = at;
      next_code_point(text, at);
      out << text.substr(start, at - start);
    }
    out << text.substr(at);
    return out.value();
  }
  for (std::size_t found = find_text(text, old);
       found != std::string_view::npos && count != 0 && !runtime.failed();
       found = find_text(text, old, at), --count) {
    out << text.substr(at, found - at) << with;
    at = found + old.size();
  }
  out << text.substr(at);
  return out.value();
}

std::string capitalize(std::string_view text) {
  std::size_t first = 0;
  if (!text.empty()) {
    next_code_point(text, first);
  }
  return to_upper(text.substr(0, first)) + to_lower(text.substr(first));
}

namespace {

Value filter_trim(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string_view characters = text_argument(runtime, arguments, 0, "");
  const std::string text = to_text(runtime, self);
  if (arguments.has(0) && arguments[0].is_string() && characters.empty()) {
    return Value::string(text);
  }
  return Value::string(std::string(strip(text, characters, true, true)));
}

Value filter_upper(Runtime& runtime, const Value& self, const Bound&) {
  return Value::string(to_upper(to_text(runtime, self)));
}

Value filter_lower(Runtime& runtime, const Value& self, const Bound&) {
  return Value::string(to_lower(to_text(runtime, self)));
}

Value filter_string(Runtime& runtime, const Value& self, const Bound&) {
  return self.is_string() ? self : Value::string(to_text(runtime, self));
}

Value filter_capitalize(Runtime& runtime, const Value& self, const Bound&) {
  return Value::string(capitalize(to_text(runtime, self)));
}

// Words begin after white space and after opening brackets and hyphens.
Value filter_title(Runtime& runtime, const Value& self, const Bound&) {
  const std::string text = to_text(runtime, self);
  std::string out;
  out.reserve(text.size());
  bool begins = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    const std::string_view letter = std::string_view(text).substr(start, at - start);
    out += begins ? to_upper(letter) : to_lower(letter);
    begins = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  }
  return Value::string(std::move(out));
}

Value filter_replace(Runtime& runtime, const Value& self, const Bound& arguments) {
  const Integer count =
      arguments.has(2) && arguments[2].is_none() ? -1 : integer_argument(runtime, arguments, 2, -1);
  return replace_text(runtime, to_text(runtime, self), to_text(runtime, arguments[0]),
                      to_text(runtime, arguments[1]), count);
}

Value filter_indent(Runtime& runtime, const Value& self, const Bound& arguments) {
  if (!self.is_string()) {
    return runtime.fail(std::string("'indent' needs a text, not a value of kind ") +
                        self.kind_name());
  }
  TextBuilder width(runtime);
  const bool text = arguments.has(0) && arguments[0].is_string();
  width.repeat(text ? arguments[0].as_string() : " ",
               text ? 1 : integer_argument(runtime, arguments, 0, 4));
  const std::string indent = width.take();
  const bool blank = arguments.flag(2, false);
  TextBuilder out(runtime);
  out << (arguments.flag(1, false) ? std::string_view(indent) : "");
  std::string_view rest = self.as_string();
  for (bool first = true; !runtime.failed(); first = false) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    const bool indented = !first && (blank || !line.empty());
    out << (first ? "" : "\n") << (indented ? std::string_view(indent) : "") << line;
    if (end == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(end + 1);
  }
  return out.value();
}

// Without the white space around, as int() and float() of a text take it. What is longer than any
// number is none.
std::string_view bare(const Value& text) {
  constexpr std::size_t number_bytes_max = 4300;
  const std::string_view stripped = strip(text.as_string(), "", true, true);
  return stripped.size() > number_bytes_max ? std::string_view() : stripped;
}

Value no_number(Runtime& runtime, std::string_view filter) {
  return runtime.fail(in_quotes(filter) + " can't make a number of an undefined or infinite value");
}

Value filter_float(Runtime& runtime, const Value& self, const Bound& arguments) {
  if (self.is_undefined()) {
    return no_number(runtime, "float");
  }
  const Value otherwise = arguments.has(0) ? arguments[0] : Value::floating(0);
  if (self.is_string()) {
    return parse_float(bare(self)).value_or(otherwise);
  }
  return self.is_number() ? Value::floating(self.as_double()) : otherwise;
}

Value filter_int(Runtime& runtime, const Value& self, const Bound& arguments) {
  const Value otherwise = arguments.has(0) ? arguments[0] : Value::integer(0);
  Value number = self;
  if (self.is_undefined() || (self.is_floating() && std::isinf(self.as_double()))) {
    return no_number(runtime, "int");
  }
  if (self.is_string()) {
    const Integer base = integer_argument(runtime, arguments, 1, 10);
    if (base < 2 || base > 36) {
      return runtime.unsupported("'int' with a base outside of 2 to 36 is not supported");
    }
    std::string_view text = bare(self);
    const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
    if (!prefix.empty() && to_lower(text.substr(0, 2)) == prefix) {
      text.remove_prefix(2);
    }
    if (const auto whole = parse_integer(text, static_cast<int>(base))) {
      return *whole;
    }
    number = parse_float(text).value_or(Value());
  }
  if (number.is_floating()) {
    const double d = std::trunc(number.as_double());
    if (std::abs(d) >= 0x1p126) {
      return std::isinf(d) ? otherwise
                           : runtime.unsupported("'int' of so large a number is not supported");
    }
    return std::isnan(d) ? otherwise : Value::integer(static_cast<Integer>(d));
  }
  return number.is_integral() ? Value::integer(number.as_integer()) : otherwise;
}

Value filter_abs(Runtime& runtime, const Value& self, const Bound&) {
  if (!self.is_number()) {
    return runtime.fail(std::string("'abs' needs a number, not a value of kind ") +
                        self.kind_name());
  }
  if (self.is_floating()) {
    return Value::floating(std::abs(self.as_double()));
  }
  return self.as_integer() < 0 ? negate(runtime, self) : Value::integer(self.as_integer());
}

Value filter_round(Runtime& runtime, const Value& self, const Bound& arguments) {
  if (!self.is_number()) {
    return runtime.fail(std::string("'round' needs a number, not a value of kind ") +
                        self.kind_name());
  }
  const Integer precision = integer_argument(runtime, arguments, 0, 0);
  const std::string_view method = text_argument(runtime, arguments, 1, "common");
  if (precision < 0 || precision > 300) {
    return runtime.unsupported("'round' with a precision outside of 0 to 300 is not supported");
  }
  const double value = self.as_double();
  if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    return Value::floating(
        (method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) / scale);
  }
  if (method != "common") {
    return runtime.fail("'round' knows the methods common, ceil and floor");
  }
  if (self.is_integral()) {
    return Value::integer(self.as_integer());
  }
  if (!std::isfinite(value)) {
    return self;
  }
  // The C library rounds the exact value of the double, ties to even, as Python does.
  char buffer[700];
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
  return parse_float(buffer).value_or(self);
}

Value filter_default(Runtime&, const Value& self, const Bound& arguments) {
  if (self.is_undefined() || (arguments.flag(1, false) && !self.truthy())) {
    return arguments.has(0) ? arguments[0] : Value::string("");
  }
  return self;
}

constexpr Builtin rows[] = {
    {"trim", "chars", 0, true, filter_trim},
    {"upper", "", 0, true, filter_upper},
    {"lower", "", 0, true, filter_lower},
    {"string", "", 0, true, filter_string},
    {"safe", "", 0, true, filter_string},
    {"capitalize", "", 0, true, filter_capitalize},
    {"title", "", 0, true, filter_title},
    {"replace", "old new count", 2, true, filter_replace},
    {"indent", "width first blank", 0, true, filter_indent},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, true, write_json},
    {"int", "default base", 0, true, filter_int},
    {"float", "default", 0, true, filter_float},
    {"abs", "", 0, false, filter_abs},
    {"round", "precision method", 0, false, filter_round},
    {"default", "default_value boolean", 0, false, filter_default},
    {"d", "default_value boolean", 0, false, filter_default},
};

}  // namespace

std::span<const Builtin> text_filters() {
  return rows;
}

}  // namespace kvart::jinja
