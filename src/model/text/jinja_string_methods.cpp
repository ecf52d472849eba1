// The methods of a text.
#include <algorithm>

#include "model/text/jinja_builtins.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

Value text_of(std::string_view text) {
  return Value::string(std::string(text));
}

template <bool left, bool right>
Value method_strip(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string characters = text_argument(runtime, arguments, 0, "");
  if (arguments.has(0) && !arguments[0].is_none() && characters.empty()) {
    return self;
  }
  return text_of(strip(self.as_string(), characters, left, right));
}

Value method_upper(Runtime&, const Value& self, const Bound&) {
  return text_of(to_upper(self.as_string()));
}
Value method_lower(Runtime&, const Value& self, const Bound&) {
  return text_of(to_lower(self.as_string()));
}
Value method_capitalize(Runtime&, const Value& self, const Bound&) {
  return text_of(capitalize(self.as_string()));
}

// A letter that follows no letter becomes upper case, the others lower.
Value method_title(Runtime&, const Value& self, const Bound&) {
  const std::string& text = self.as_string();
  std::string out;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const bool cased = is_cased(next_code_point(text, at));
    const std::string_view letter = std::string_view(text).substr(start, at - start);
    out += in_word ? to_lower(letter) : to_upper(letter);
    in_word = cased;
  }
  return Value::string(std::move(out));
}

std::vector<Value> split_at_spaces(std::string_view text, Integer splits) {
  std::vector<Value> parts;
  text.remove_prefix(space_prefix(text));
  while (!text.empty()) {
    if (splits-- == 0) {
      parts.push_back(text_of(text));
      break;
    }
    std::size_t end = 0;
    while (end < text.size() && space_prefix(text.substr(end)) == 0) {
      next_code_point(text, end);
    }
    parts.push_back(text_of(text.substr(0, end)));
    text.remove_prefix(end);
    text.remove_prefix(space_prefix(text));
  }
  return parts;
}

Value method_split(Runtime& runtime, const Value& self, const Bound& arguments) {
  std::string_view text = self.as_string();
  Integer splits = integer_argument(runtime, arguments, 1, -1);
  runtime.charge_bytes(text.size());
  if (!arguments.has(0) || arguments[0].is_none()) {
    return Value::list(split_at_spaces(text, splits));
  }
  const std::string separator = text_argument(runtime, arguments, 0, "");
  if (separator.empty()) {
    return runtime.fail("'split' needs a separator that is not empty");
  }
  std::vector<Value> parts;
  constexpr std::size_t bytes_per_part = 96;  // a string and its handle
  for (std::size_t found = find_text(text, separator);
       found != std::string_view::npos && splits != 0 && runtime.charge_bytes(bytes_per_part);
       found = find_text(text, separator), --splits) {
    parts.push_back(text_of(text.substr(0, found)));
    text.remove_prefix(found + separator.size());
  }
  parts.push_back(text_of(text));
  return Value::list(std::move(parts));
}

Value method_splitlines(Runtime& runtime, const Value& self, const Bound& arguments) {
  const bool keep = arguments.flag(0, false);
  std::string_view text = self.as_string();
  std::vector<Value> lines;
  while (!text.empty() && runtime.charge_bytes(96)) {
    std::size_t end = 0;
    std::size_t next = 0;
    while (next < text.size()) {
      end = next;
      const char32_t c = next_code_point(text, next);
      if ((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
          c == 0x2029) {
        next += c == 13 && next < text.size() && text[next] == '\n' ? 1 : 0;
        break;
      }
      end = next;
    }
    lines.push_back(text_of(text.substr(0, keep ? next : end)));
    text.remove_prefix(next);
  }
  return Value::list(std::move(lines));
}

template <bool at_start>
Value method_affix(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string_view text = self.as_string();
  const auto matches = [text](const Value& affix) {
    return affix.is_string() &&
           (at_start ? text.starts_with(affix.as_string()) : text.ends_with(affix.as_string()));
  };
  if (arguments[0].is_tuple()) {
    const auto& all = arguments[0].as_items();
    return Value::boolean(std::any_of(all.begin(), all.end(), matches));
  }
  text_argument(runtime, arguments, 0, "");
  return Value::boolean(matches(arguments[0]));
}

template <bool at_start>
Value method_remove_affix(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string affix = text_argument(runtime, arguments, 0, "");
  std::string_view text = self.as_string();
  if (at_start ? text.starts_with(affix) : text.ends_with(affix)) {
    text = at_start ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size());
  }
  return text_of(text);
}

Value method_replace(Runtime& runtime, const Value& self, const Bound& arguments) {
  return Value::string(replace_text(
      runtime, self.as_string(), text_argument(runtime, arguments, 0, ""),
      text_argument(runtime, arguments, 1, ""), integer_argument(runtime, arguments, 2, -1)));
}

template <bool from_start>
Value method_find(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string wanted = text_argument(runtime, arguments, 0, "");
  const std::string_view text = self.as_string();
  const auto offsets = code_point_offsets(text);
  const auto size = Integer(offsets.size() - 1);
  const auto bound = [&](std::size_t i, Integer otherwise) {
    const bool given = arguments.has(i) && !arguments[i].is_none();
    const Integer value = given ? integer_argument(runtime, arguments, i, otherwise) : otherwise;
    return value < 0 ? std::max(value + size, Integer(0)) : value;
  };
  const Integer start = bound(1, 0);
  const Integer end = std::min(bound(2, size), size);
  // The search from the end may compare the wanted text at every place.
  constexpr std::size_t bytes_per_step = 32;
  if (start > end ||
      (!from_start && !runtime.charge(text.size() * wanted.size() / bytes_per_step))) {
    return Value::integer(-1);
  }
  const std::size_t first = offsets[static_cast<std::size_t>(start)];
  const std::string_view part = text.substr(first, offsets[static_cast<std::size_t>(end)] - first);
  const std::size_t found = from_start ? find_text(part, wanted) : part.rfind(wanted);
  return found == std::string_view::npos
             ? Value::integer(-1)
             : Value::integer(start + Integer(count_code_points(part.substr(0, found))));
}

Value method_count(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string wanted = text_argument(runtime, arguments, 0, "");
  const std::string& text = self.as_string();
  if (wanted.empty()) {
    return Value::integer(Integer(count_code_points(text)) + 1);
  }
  Integer count = 0;
  for (std::size_t at = find_text(text, wanted); at != std::string::npos;
       at = find_text(text, wanted, at + wanted.size())) {
    ++count;
  }
  return Value::integer(count);
}

Value method_join(Runtime& runtime, const Value& self, const Bound& arguments) {
  TextBuilder out(runtime);
  bool first = true;
  for (const Value& item : items_of(runtime, arguments[0])) {
    if (!item.is_string()) {
      return runtime.fail(std::string("'join' needs texts, not a value of kind ") +
                          item.kind_name());
    }
    out << (first ? std::string_view() : std::string_view(self.as_string())) << item.as_string();
    first = false;
  }
  return out.value();
}

constexpr Builtin rows[] = {
    {"strip", "chars", 0, true, method_strip<true, true>},
    {"lstrip", "chars", 0, true, method_strip<true, false>},
    {"rstrip", "chars", 0, true, method_strip<false, true>},
    {"upper", "", 0, true, method_upper},
    {"lower", "", 0, true, method_lower},
    {"capitalize", "", 0, true, method_capitalize},
    {"title", "", 0, true, method_title},
    {"split", "sep maxsplit", 0, true, method_split},
    {"splitlines", "keepends", 0, true, method_splitlines},
    {"startswith", "prefix", 1, false, method_affix<true>},
    {"endswith", "suffix", 1, false, method_affix<false>},
    {"removeprefix", "prefix", 1, true, method_remove_affix<true>},
    {"removesuffix", "suffix", 1, true, method_remove_affix<false>},
    {"replace", "old new count", 2, true, method_replace},
    {"find", "sub start end", 1, true, method_find<true>},
    {"rfind", "sub start end", 1, true, method_find<false>},
    {"count", "sub", 1, true, method_count},
    {"join", "iterable", 1, false, method_join},
};

}  // namespace

std::span<const Builtin> string_methods() {
  return rows;
}

}  // namespace kvart::jinja
