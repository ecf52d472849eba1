// Types of JSON values checked, with messages that name file, place, expected and found.
#include "model/text/tokenizer_json_field.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/file/printable.h"

namespace kvart::text {

namespace {
const nlohmann::json null_value;
}  // namespace

Error JsonField::invalid(std::string_view message) const {
  return {ErrorCode::invalid_file, path_.empty()
                                       ? fmt::format("{}: {}", file_, message)
                                       : fmt::format("{}: {}: {}", file_, path_, message)};
}

Error JsonField::unsupported(std::string_view message) const {
  return {ErrorCode::unsupported, invalid(message).message};
}

Error JsonField::wrong_type(const char* expected) const {
  return invalid(fmt::format("{}; expected {}", value_->is_null() ? "missing" : value_->type_name(),
                             expected));
}

JsonField JsonField::member(std::string_view key) const {
  const auto found = value_->find(key);
  return {found == value_->end() ? null_value : *found, file_,
          path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
}

std::vector<JsonField> JsonField::elements() const {
  std::vector<JsonField> result;
  if (!value_->is_array()) return result;
  result.reserve(value_->size());
  for (const auto& element : *value_) {
    result.emplace_back(element, file_, fmt::format("{}[{}]", path_, result.size()));
  }
  return result;
}

Result<bool> JsonField::get_bool(bool missing) const {
  if (value_->is_null()) return missing;
  if (!value_->is_boolean()) return wrong_type("true or false");
  return value_->get<bool>();
}

Result<std::string> JsonField::get_string() const {
  if (!value_->is_string()) return wrong_type("a string");
  return value_->get<std::string>();
}

Result<int64_t> JsonField::get_integer() const {
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return invalid(fmt::format("{} is too large", value_->get<uint64_t>()));
  }
  if (!value_->is_number_integer()) return wrong_type("an integer");
  return value_->get<int64_t>();
}

Status JsonField::check_list() const {
  if (!value_->is_array()) return wrong_type("a list");
  return {};
}

Status JsonField::check_object() const {
  if (!value_->is_object()) return wrong_type("an object");
  return {};
}

Status JsonField::check_members(std::initializer_list<std::string_view> known) const {
  KVART_RETURN_IF_ERROR(check_object());
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return unsupported(fmt::format("'{}' isn't supported", printable(key)));
    }
  }
  return {};
}

}  // namespace kvart::text
