// JSON text of unknown origin, parsed with bounds.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "kvart/result.h"

namespace kvart {

// Empties a value from its leaves on. A destructor takes memory for the values inside that are
// arrays or objects and not empty, and ends the program where the system has none.
template <class Json>
void empty_json(Json& json) noexcept {
  if (json.is_array()) {
    auto& list = *json.template get_ptr<typename Json::array_t*>();
    for (Json& entry : list) empty_json(entry);
    list.clear();
  } else if (json.is_object()) {
    auto& members = *json.template get_ptr<typename Json::object_t*>();
    for (auto& member : members) empty_json(member.second);
    members.clear();
  }
}

// A value that goes away without memory.
template <class Json>
struct EmptiedJson {
  Json value;

  EmptiedJson() = default;
  explicit EmptiedJson(Json&& from) : value(std::move(from)) {}
  EmptiedJson(EmptiedJson&& other) noexcept : value(std::move(other.value)) {}
  EmptiedJson& operator=(EmptiedJson&& other) noexcept {
    std::swap(value, other.value);
    return *this;
  }
  EmptiedJson(const EmptiedJson&) = delete;
  EmptiedJson& operator=(const EmptiedJson&) = delete;
  ~EmptiedJson() { empty_json(value); }
};

// Error (invalid_file): not JSON, a key twice in one object, deeper than 64, invalid UTF-8, text
// after the end; with `source`, the byte and the cause.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& source);

// The same for text of a request: objects keep the order of their keys; the message (code
// invalid_argument) is the cause alone. A byte order mark isn't JSON.
Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text);

// parse_json of a file of at most max_bytes.
Result<nlohmann::json> read_json_file(const std::string& path, uint64_t max_bytes);

}  // namespace kvart
