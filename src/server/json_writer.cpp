// Commas, quotes and numbers.
#include "server/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "model/text/tokenizer_utf8.h"

namespace kvart::server {

void JsonWriter::separate() {
  if (!first_) *text_ += ',';
  first_ = false;
}

void JsonWriter::begin(char bracket) {
  separate();
  *text_ += bracket;
  first_ = true;
}

void JsonWriter::end(char bracket) {
  *text_ += bracket;
  first_ = false;
}

void JsonWriter::name(std::string_view name) {
  separate();
  quote(name);
  *text_ += ':';
  first_ = true;
}

void JsonWriter::value(std::string_view text) {
  separate();
  quote(text);
}

void JsonWriter::value(double number) {
  if (!std::isfinite(number)) return value(nullptr);
  separate();
  const size_t begin = text_->size();
  fmt::format_to(std::back_inserter(*text_), "{}", number);
  const bool looks_whole = text_->find_first_of(".e", begin) == std::string::npos;
  if (looks_whole) *text_ += ".0";
}

void JsonWriter::value(const std::vector<int32_t>& list) {
  begin_array();
  for (const int32_t number : list) value(number);
  end_array();
}

void JsonWriter::raw(std::string_view json) {
  separate();
  *text_ += json;
}

void JsonWriter::quote(std::string_view text) {
  std::string repaired;
  if (text::append_repaired(text, repaired) > 0) repaired += "\xEF\xBF\xBD";
  *text_ += '"';
  for (const char c : repaired) {
    if (c == '"' || c == '\\') {
      *text_ += '\\';
      *text_ += c;
    } else if (c == '\n') {
      *text_ += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ') {
      fmt::format_to(std::back_inserter(*text_), "\\u{:04x}", static_cast<int>(c));
    } else {
      *text_ += c;
    }
  }
  *text_ += '"';
}

}  // namespace kvart::server
