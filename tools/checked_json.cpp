// Reading of JSON: looked at first, then built.
#include "checked_json.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

namespace kvart::tools {
namespace {

using Json = nlohmann::ordered_json;

// Looks at the JSON before anything is built of it: well-formed, not too deep, no name twice.
class Checker : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    fault = fmt::format("'{}' is there twice in one object", shortened(name));
    return false;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& why) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ...": what follows.
    const std::string text = why.what();
    const size_t end = text.find("] ");
    fault =
        fmt::format("isn't JSON: {} (byte {})",
                    shortened(end == std::string::npos ? text : text.substr(end + 2)), position);
    return false;
  }

  std::string fault;  // empty: none

 private:
  static std::string shortened(const std::string& text) { return text.substr(0, 160); }

  bool enter() {
    names_.emplace_back();
    if (names_.size() <= static_cast<size_t>(max_json_depth)) return true;
    fault = fmt::format("is nested deeper than {} levels", max_json_depth);
    return false;
  }

  bool leave() {
    names_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> names_;
};

}  // namespace

Result<Json> parse_checked_json(std::string_view text) {
  Checker checker;
  if (!Json::sax_parse(text, &checker)) return Error{ErrorCode::invalid_data, checker.fault};
  return Json::parse(text, nullptr, false);
}

}  // namespace kvart::tools
