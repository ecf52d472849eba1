// A SAX handler that builds the value and refuses what a plain parse would let through.
#include "model/file/json_text.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "model/file/printable.h"
#include "model/file/text_file.h"

namespace kvart {

namespace {

constexpr size_t max_depth = 64;

template <class Json>
class Builder final : public nlohmann::json_sax<Json> {
 public:
  using number_integer_t = typename Json::number_integer_t;
  using number_unsigned_t = typename Json::number_unsigned_t;
  using number_float_t = typename Json::number_float_t;
  using string_t = typename Json::string_t;
  using binary_t = typename Json::binary_t;
  EmptiedJson<Json> root;
  std::string error;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!open_.back().keys.insert(name).second) {
      error = fmt::format("the key '{}' is there twice", printable(name));
      return false;
    }
    name_ = name;
    return true;
  }
  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*cause*/) override {
    if (error.empty()) error = fmt::format("it is no JSON (byte {})", byte);
    return false;
  }

 private:
  // What has come of an array or object that hasn't ended yet.
  struct Open {
    EmptiedJson<Json> value;
    std::vector<std::pair<std::string, EmptiedJson<Json>>> members{};  // of an object
    std::set<std::string> keys{};
  };

  // Where there is no memory, `value` stays what it is.
  bool add(Json&& value) {
    if (open_.empty()) {
      root.value = std::move(value);
    } else if (Open& parent = open_.back(); parent.value.value.is_array()) {
      parent.value.value.push_back(std::move(value));
    } else {
      parent.members.emplace_back(std::move(name_), std::move(value));
    }
    return true;
  }
  bool open(Json value) {
    if (open_.size() == max_depth) {
      error = fmt::format("it is nested more than {} deep", max_depth);
      return false;
    }
    names_.push_back(std::move(name_));
    open_.push_back({EmptiedJson<Json>(std::move(value))});
    return true;
  }
  bool close() {
    Open closed = std::move(open_.back());
    open_.pop_back();
    name_ = std::move(names_.back());
    names_.pop_back();
    Json& value = closed.value.value;
    if (value.is_object()) {
      fill(value.template get_ref<typename Json::object_t&>(), closed.members);
    }
    return add(std::move(value));
  }

  static void fill(std::map<std::string, Json, std::less<>>& object,
                   std::vector<std::pair<std::string, EmptiedJson<Json>>>& members) {
    for (auto& [name, tree] : members) object.emplace(std::move(name), std::move(tree.value));
  }
  // With its place taken beforehand: this list has constant keys, so that it copies its members,
  // whole trees, each time that it grows. The keys are known to differ: looking each one up would
  // take quadratic time.
  static void fill(std::vector<std::pair<const std::string, Json>>& object,
                   std::vector<std::pair<std::string, EmptiedJson<Json>>>& members) {
    object.reserve(members.size());
    for (auto& [name, tree] : members) object.emplace_back(std::move(name), std::move(tree.value));
  }

  std::vector<Open> open_;          // the innermost last
  std::vector<std::string> names_;  // under which each of them goes into the one before
  std::string name_;                // of what comes next, where an object is open
};

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& source) {
  Builder<nlohmann::json> builder;
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    return std::move(builder.root.value);
  }
  return Error{ErrorCode::invalid_file,
               fmt::format("{}: {}; the file is damaged or incomplete, fetch it again", source,
                           builder.error)};
}

Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    return Error{ErrorCode::invalid_argument, "it begins with a byte order mark; leave it out"};
  }
  Builder<nlohmann::ordered_json> builder;
  if (nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &builder)) {
    return std::move(builder.root.value);
  }
  return Error{ErrorCode::invalid_argument, builder.error};
}

Result<nlohmann::json> read_json_file(const std::string& path, uint64_t max_bytes) {
  const auto text = read_text_file(path, max_bytes);
  if (!text.ok()) return text.error();
  return parse_json(*text, printable(path, 512));
}

}  // namespace kvart
