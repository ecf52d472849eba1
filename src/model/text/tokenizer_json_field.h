// A value in a JSON file with its place, and reading it with its type checked.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"

namespace kvart::text {

// Points into the document, which must outlive it.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }
  bool is_object() const { return value_->is_object(); }

  // "FILE: PATH: message".
  Error invalid(std::string_view message) const;
  Error unsupported(std::string_view message) const;

  // The member `key`; null where it is missing. Precondition: is_object().
  JsonField member(std::string_view key) const;
  std::vector<JsonField> elements() const;  // of a list, else none

  // Error: another type; also where it is null, but for get_bool's `missing`.
  Result<bool> get_bool(bool missing) const;
  Result<std::string> get_string() const;
  Result<int64_t> get_integer() const;
  Status check_list() const;
  Status check_object() const;
  // No other members than these.
  Status check_members(std::initializer_list<std::string_view> known) const;

 private:
  Error wrong_type(const char* expected) const;

  const nlohmann::json* value_;
  std::string file_, path_;
};

}  // namespace kvart::text
