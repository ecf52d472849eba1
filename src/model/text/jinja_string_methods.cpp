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
  const std::string_view characters = text_argument(runtime, arguments, 0, "");
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
  const std::string_view text = self.as_string();
  std::string out;
  out.reserve(text.size());
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const bool cased = is_cased(next_code_point(text, at));
    const std::string_view letter = text.substr(start, at - start);
    out += !cased ? std::string(letter) : in_word ? to_lower(letter) : to_upper(letter);
    in_word = cased;
  }
  return Value::string(std::move(out));
}

Value split_at_spaces(Runtime& runtime, std::string_view text, Integer splits) {
  ListBuilder parts(runtime);
  text.remove_prefix(space_prefix(text));
  while (!text.empty()) {
    if (splits-- == 0) {
      parts.add_text(text);
      break;
    }
    std::size_t end = 0;
    while (end < text.size() && space_prefix(text.substr(end)) == 0) {
      next_code_point(text, end);
    }
    if (!parts.add_text(text.substr(0, end))) {
      break;
    }
    text.remove_prefix(end);
    text.remove_prefix(space_prefix(text));
  }
  return parts.list();
}

// The parts in the order of a search from the end.
Value reversed(Runtime& runtime, const Value& list) {
  const auto& items = list.as_items();
  runtime.charge_items(items.size());
  return Value::list(std::vector<Value>(items.rbegin(), items.rend()));
}

Value split_at_spaces_from_end(Runtime& runtime, std::string_view text, Integer splits) {
  ListBuilder parts(runtime);
  text.remove_suffix(space_suffix(text));
  while (!text.empty()) {
    if (splits-- == 0) {
      parts.add_text(text);
      break;
    }
    std::size_t start = text.size();
    for (std::size_t before = start; start > 0; start = before) {
      if (is_space(previous_code_point(text, before))) {
        break;
      }
    }
    if (!parts.add_text(text.substr(start))) {
      break;
    }
    text = text.substr(0, start);
    text.remove_suffix(space_suffix(text));
  }
  return reversed(runtime, parts.list());
}

Value split_from_end(Runtime& runtime, std::string_view text, std::string_view separator,
                     Integer splits) {
  // The search for a text in another is linear forwards alone.
  if (!runtime.charge_copy(text) || !runtime.charge_copy(separator)) {
    return {};
  }
  const std::string backwards(text.rbegin(), text.rend());
  const std::string wanted(separator.rbegin(), separator.rend());
  ListBuilder parts(runtime);
  std::size_t from = 0;
  for (; splits != 0; --splits) {
    const std::size_t found = find_text(backwards, wanted, from);
    if (found == std::string::npos ||
        !parts.add_text(text.substr(text.size() - found, found - from))) {
      break;
    }
    from = found + wanted.size();
  }
  parts.add_text(text.substr(0, text.size() - from));
  return reversed(runtime, parts.list());
}

template <bool from_start>
Value method_split(Runtime& runtime, const Value& self, const Bound& arguments) {
  std::string_view text = self.as_string();
  Integer splits = integer_argument(runtime, arguments, 1, -1);
  if (!arguments.has(0) || arguments[0].is_none()) {
    return from_start ? split_at_spaces(runtime, text, splits)
                      : split_at_spaces_from_end(runtime, text, splits);
  }
  const std::string_view separator = text_argument(runtime, arguments, 0, "");
  if (separator.empty()) {
    return runtime.fail("'split' needs a separator that is not empty");
  }
  if (!from_start) {
    return split_from_end(runtime, text, separator, splits);
  }
  ListBuilder parts(runtime);
  for (std::size_t found = find_text(text, separator);
       found != std::string_view::npos && splits != 0 && parts.add_text(text.substr(0, found));
       found = find_text(text, separator), --splits) {
    text.remove_prefix(found + separator.size());
  }
  parts.add_text(text);
  return parts.list();
}

Value method_splitlines(Runtime& runtime, const Value& self, const Bound& arguments) {
  const bool keep = arguments.flag(0, false);
  std::string_view text = self.as_string();
  ListBuilder lines(runtime);
  while (!text.empty() && !runtime.failed()) {
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
    lines.add_text(text.substr(0, keep ? next : end));
    text.remove_prefix(next);
  }
  return lines.list();
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
  const std::string_view affix = text_argument(runtime, arguments, 0, "");
  std::string_view text = self.as_string();
  if (at_start ? text.starts_with(affix) : text.ends_with(affix)) {
    text = at_start ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size());
  }
  return text_of(text);
}

Value method_replace(Runtime& runtime, const Value& self, const Bound& arguments) {
  return replace_text(runtime, self.as_string(), text_argument(runtime, arguments, 0, ""),
                      text_argument(runtime, arguments, 1, ""),
                      integer_argument(runtime, arguments, 2, -1));
}

template <bool from_start>
Value method_find(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string_view wanted = text_argument(runtime, arguments, 0, "");
  const std::string_view text = self.as_string();
  const auto size = Integer(count_code_points(text));
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
  const std::string_view rest =
      text.substr(code_point_offset(text, static_cast<std::size_t>(start)));
  const std::string_view part =
      rest.substr(0, code_point_offset(rest, static_cast<std::size_t>(end - start)));
  const std::size_t found = from_start ? find_text(part, wanted) : part.rfind(wanted);
  return found == std::string_view::npos
             ? Value::integer(-1)
             : Value::integer(start + Integer(count_code_points(part.substr(0, found))));
}

Value method_count(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string_view wanted = text_argument(runtime, arguments, 0, "");
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
    if (runtime.failed()) {
      break;
    }
  }
  return out.value();
}

// "{}", "{2}" and doubled braces; fields of other forms are not supported.
Value method_format(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string_view text = self.as_string();
  TextBuilder out(runtime);
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size() && !runtime.failed();) {
    const std::size_t brace = std::min(text.find_first_of("{}", at), text.size());
    out << text.substr(at, brace - at);
    at = brace + 1;
    if (brace == text.size()) {
      break;
    }
    if (text.substr(at, 1) == text.substr(brace, 1)) {
      out << text.substr(at++, 1);
      continue;
    }
    const std::size_t end = text.find('}', at);
    if (text[brace] == '}' || end == std::string_view::npos) {
      return runtime.fail("'format': a brace without its pair");
    }
    const std::string_view field = text.substr(at, end - at);
    const auto number = parse_integer(field, 10);
    if (!field.empty() && (!number || field.find_first_not_of("0123456789") != field.npos)) {
      return runtime.unsupported("'format' with the field " + in_quotes(field) +
                                 " is not supported");
    }
    const Integer place = number ? number->as_integer() : Integer(next++);
    if (place >= Integer(arguments.size()) || (number && next > 0)) {
      return runtime.fail("'format': no argument for the field " + in_quotes(field));
    }
    append_text(runtime, arguments[static_cast<std::size_t>(place)], out);
    at = end + 1;
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
    {"split", "sep maxsplit", 0, true, method_split<true>},
    {"rsplit", "sep maxsplit", 0, true, method_split<false>},
    {"splitlines", "keepends", 0, true, method_splitlines},
    {"startswith", "prefix", 1, false, method_affix<true>},
    {"endswith", "suffix", 1, false, method_affix<false>},
    {"removeprefix", "prefix", 1, true, method_remove_affix<true>},
    {"removesuffix", "suffix", 1, true, method_remove_affix<false>},
    {"replace", "old new count", 2, true, method_replace},
    {"find", "sub start end", 1, true, method_find<true>},
    {"rfind", "sub start end", 1, true, method_find<false>},
    {"count", "sub", 1, true, method_count},
    {"format", "*", 0, true, method_format},
    {"join", "iterable", 1, false, method_join},
};

}  // namespace

std::span<const Builtin> string_methods() {
  return rows;
}

}  // namespace kvart::jinja
