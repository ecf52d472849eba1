// How values are written: texts in quotes, as in a printed list, and JSON.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "model/text/jinja_builtins.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

// Whether Python prints it as it is: not controls, formatting marks, private use, or spaces other
// than ' '.
bool is_printable(char32_t c) {
  constexpr std::pair<char32_t, char32_t> hidden[] = {
      {0, 0x1f},        {0x7f, 0xa0},     {0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},
      {0x6dd, 0x6dd},   {0x70f, 0x70f},   {0x1680, 0x1680},   {0x180e, 0x180e},   {0x2000, 0x200f},
      {0x2028, 0x202f}, {0x205f, 0x206f}, {0x3000, 0x3000},   {0xd800, 0xf8ff},   {0xfeff, 0xfeff},
      {0xfff0, 0xfffb}, {0xfffe, 0xffff}, {0xe0000, 0xe00ff}, {0xf0000, 0x10ffff}};
  return std::none_of(std::begin(hidden), std::end(hidden),
                      [c](const auto& range) { return c >= range.first && c <= range.second; });
}

void append_hex(std::string& out, char letter, int width, char32_t c) {
  std::array<char, 16> buffer;
  std::snprintf(buffer.data(), buffer.size(), "\\%c%0*x", letter, width, static_cast<unsigned>(c));
  out += buffer.data();
}

// Writes a text in runs of bytes that stay as they are, between what `escape` makes of the others:
// escape(code point, out) is whether it wrote anything.
template <class Escape>
void append_escaped(std::string_view text, TextBuilder& out, Escape escape) {
  std::size_t run = 0;
  std::string escaped;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    if (escape(next_code_point(text, at), escaped)) {
      out << text.substr(run, start - run) << escaped;
      escaped.clear();
      run = at;
    }
  }
  out << text.substr(run);
}

}  // namespace

void append_repr_of_text(std::string_view text, TextBuilder& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const std::string_view quote =
      has_single && text.find('"') == std::string_view::npos ? "\"" : "'";
  out << quote;
  append_escaped(text, out, [quote](char32_t c, std::string& escaped) {
    if (c == static_cast<char32_t>(quote[0]) || c == '\\') {
      (escaped += '\\') += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      escaped += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      return false;
    } else if (c < 0x100) {
      append_hex(escaped, 'x', 2, c);
    } else {
      append_hex(escaped, c < 0x10000 ? 'u' : 'U', c < 0x10000 ? 4 : 8, c);
    }
    return true;
  });
  out << quote;
}

void append_json_text(std::string_view text, bool ascii, TextBuilder& out) {
  out << "\"";
  append_escaped(text, out, [ascii](char32_t c, std::string& escaped) {
    constexpr std::string_view plain = "\"\\\n\r\t\f\b";
    constexpr std::string_view letters = "\"\\nrtfb";
    const std::size_t known = c < 0x80 ? plain.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      (escaped += '\\') += letters[known];
    } else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000)) {
      append_hex(escaped, 'u', 4, c);
    } else if (ascii && c >= 0x10000) {
      append_hex(escaped, 'u', 4, 0xd800 + ((c - 0x10000) >> 10));
      append_hex(escaped, 'u', 4, 0xdc00 + ((c - 0x10000) & 0x3ff));
    } else {
      return false;
    }
    return true;
  });
  out << "\"";
}

namespace {

struct JsonWriter {
  Runtime& runtime;
  TextBuilder out;
  bool ascii = false;
  bool sorted = false;
  std::optional<std::string> indent;  // of one level
  std::string item_separator;
  std::string key_separator;

  void line(int level) {
    if (indent) {
      out << "\n";
      out.repeat(*indent, level);
    }
  }

  // Of a key that is no text.
  std::string key_text(const Value& key) {
    if (key.is_none() || key.is_boolean()) {
      return key.is_none() ? "null" : key.truthy() ? "true" : "false";
    }
    if (!key.is_number()) {
      runtime.fail("'tojson': a dict's keys must be texts or numbers");
      return "";
    }
    return to_text(runtime, key);
  }

  void dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    runtime.charge_items(dict.entries.size());
    for (const auto& entry : dict.entries) {
      entries.push_back(&entry);
    }
    if (sorted) {
      std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
        return compare(runtime, "<", a->first, b->first);
      });
    }
    std::string_view separator;
    out << "{";
    for (const auto* entry : entries) {
      out << separator;
      line(level + 1);
      const Value& key = entry->first;
      if (key.is_string()) {
        append_json_text(key.as_string(), ascii, out);
      } else {
        append_json_text(key_text(key), ascii, out);
      }
      out << key_separator;
      value(entry->second, level + 1);
      separator = item_separator;
    }
    if (!entries.empty()) {
      line(level);
    }
    out << "}";
  }

  void list(const std::vector<Value>& items, int level) {
    std::string_view separator;
    out << "[";
    for (const Value& item : items) {
      out << separator;
      line(level + 1);
      value(item, level + 1);
      separator = item_separator;
    }
    if (!items.empty()) {
      line(level);
    }
    out << "]";
  }

  void value(const Value& v, int level) {
    if (v.is_none()) {
      out << "null";
    } else if (v.is_boolean()) {
      out << (v.truthy() ? "true" : "false");
    } else if (v.is_integer()) {
      out << write_integer(v.as_integer());
    } else if (v.is_floating()) {
      const double d = v.as_double();
      out << (std::isnan(d)   ? "NaN"
              : std::isinf(d) ? d > 0 ? "Infinity" : "-Infinity"
                              : write_float(d));
    } else if (v.is_string()) {
      append_json_text(v.as_string(), ascii, out);
    } else if (v.is_sequence()) {
      list(v.as_items(), level);
    } else if (v.is_dict()) {
      dict(v.as_dict(), level);
    } else {
      const std::string* name = v.is_undefined() ? v.undefined_name() : nullptr;
      runtime.fail(std::string("'tojson': a value of kind ") + v.kind_name() + " can't be written" +
                   (name != nullptr ? " (" + in_quotes(*name) + ")" : ""));
    }
  }
};

}  // namespace

Value write_json(Runtime& runtime, const Value& self, const Bound& arguments) {
  JsonWriter writer{runtime,
                    TextBuilder(runtime),
                    arguments.flag(0, false),
                    arguments.flag(3, false),
                    std::nullopt,
                    ", ",
                    ": "};
  if (arguments.has(1) && !arguments[1].is_none()) {
    const bool text = arguments[1].is_string();
    TextBuilder indent(runtime);
    indent.repeat(text ? arguments[1].as_string() : " ",
                  text ? 1 : integer_argument(runtime, arguments, 1, 0));
    writer.indent = indent.take();
    writer.item_separator = ",";
  }
  if (arguments.has(2) && !arguments[2].is_none()) {
    const Items separators = items_of(runtime, arguments[2]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      return runtime.fail("'tojson': separators must be two texts");
    }
    writer.item_separator = separators[0].as_string();
    writer.key_separator = separators[1].as_string();
  }
  writer.value(self, 0);
  return writer.out.value();
}

}  // namespace kvart::jinja
