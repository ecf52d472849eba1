// Types and ranges of fields.
#include "server/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/file/printable.h"

namespace kvart::server {

namespace {

constexpr size_t max_unknown = 100;

// A whole number that fits in 64 bits.
std::optional<int64_t> whole(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

bool is_nothing(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

}  // namespace

Fields::Fields(const Json& body, std::string prefix) : body_(body), prefix_(std::move(prefix)) {
  KVART_CHECK(body.is_object());
}

const Json* Fields::find(std::string_view name) {
  known_.emplace_back(name);
  if (error_) return nullptr;
  const auto found = body_.find(std::string(name));
  return found == body_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t min, int64_t max) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto number = whole(*value);
  if (number && *number >= min && *number <= max) return number;
  fail(name, fmt::format("must be a whole number from {} to {}", min, max));
  return std::nullopt;
}

std::optional<double> Fields::number(std::string_view name, double min, double max,
                                     bool above_min) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const auto number = value->get<double>();
    const bool right = std::isfinite(number) && number >= min && number <= max;
    if (right && !(above_min && number == min)) return number;
  }
  fail(name,
       fmt::format("must be a number {}{:g} to {:g}", above_min ? "above " : "from ", min, max));
  return std::nullopt;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fail(name, "must be true or false");
  return std::nullopt;
}

const std::string* Fields::text(std::string_view name, size_t max_bytes) {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    if (text.size() <= max_bytes) return &text;
  }
  fail(name, fmt::format("must be a text of at most {} bytes", max_bytes));
  return nullptr;
}

const Json* Fields::object(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr || value->is_object()) return value;
  fail(name, "must be an object");
  return nullptr;
}

const Json* Fields::list(std::string_view name, size_t max_entries) {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (value->is_array() && value->size() <= max_entries) return value;
  fail(name, fmt::format("must be a list of at most {} entries", max_entries));
  return nullptr;
}

std::vector<int32_t> Fields::token_ids(std::string_view name, size_t max_entries, int32_t vocab) {
  std::vector<int32_t> ids;
  const Json* entries = list(name, max_entries);
  if (entries == nullptr) return ids;
  const auto wrong = read_ids(*entries, vocab, &ids);
  if (!wrong) return ids;
  fail(name, *wrong);
  return {};
}

void Fields::ignore(std::initializer_list<std::string_view> names) {
  known_.insert(known_.end(), names.begin(), names.end());
}

void Fields::refuse(std::string_view name, std::string_view why) {
  const Json* value = find(name);
  if (value != nullptr && !is_nothing(*value)) fail(name, std::string(why));
}

void Fields::fail(std::string_view name, const std::string& what) {
  if (error_) return;
  const std::string full = prefix_ + std::string(name);
  error_ = ApiError{400, full + ": " + what, full};
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  for (const auto& item : body_.items()) {
    if (names.size() == max_unknown) break;
    if (std::find(known_.begin(), known_.end(), item.key()) == known_.end()) {
      names.push_back(prefix_ + printable(item.key(), 64));
    }
  }
  return names;
}

std::optional<std::string> read_ids(const Json& list, int32_t vocab, std::vector<int32_t>* ids) {
  for (const Json& entry : list) {
    const auto id = whole(entry);
    if (!id || *id < 0 || *id >= vocab) {
      return fmt::format("entry {} isn't a token id; ids are whole numbers from 0 to {}",
                         ids->size(), vocab - 1);
    }
    ids->push_back(static_cast<int32_t>(*id));
  }
  return std::nullopt;
}

}  // namespace kvart::server
