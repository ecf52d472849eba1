// JsonWriter: JSON as text, written from front to back. Beside the text it needs no memory, and
// none to go away: where the system has none for an answer, that answer alone is lost. (A tree of
// nlohmann's values allocates in its destructor.)
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvart::server {

class JsonWriter {
 public:
  // Appends to *text, which outlives it.
  explicit JsonWriter(std::string* text) : text_(text) {}

  // Each begin has its end. In an object every value has its name in front.
  void begin_object() { begin('{'); }
  void end_object() { end('}'); }
  void begin_array() { begin('['); }
  void end_array() { end(']'); }
  void name(std::string_view name);

  // Bytes that are no UTF-8 become U+FFFD.
  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  void value(const std::string& text) { value(std::string_view(text)); }
  void value(double number);  // null where it isn't finite
  void value(bool truth) { raw(truth ? "true" : "false"); }
  void value(std::nullptr_t) { raw("null"); }
  template <std::integral Number>
  void value(Number number) {
    raw(std::to_string(number));
  }
  template <class Value>
  void value(const std::optional<Value>& maybe) {
    if (!maybe) return value(nullptr);
    value(*maybe);
  }
  void value(const std::vector<int32_t>& list);
  // JSON that is written already.
  void raw(std::string_view json);

  template <class Value>
  void member(std::string_view its_name, const Value& its_value) {
    name(its_name);
    value(its_value);
  }

 private:
  void separate();
  void begin(char bracket);
  void end(char bracket);
  void quote(std::string_view text);

  std::string* text_;
  bool first_ = true;  // nothing is in front of what comes next
};

}  // namespace kvart::server
