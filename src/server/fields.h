// Reading the fields of a request's body: each with its type and range, the first that is wrong
// named.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace kvart::server {

// One JSON object. A field that is null counts as absent. After the first fault everything that is
// asked for is absent, so that a list of reads needs one check at its end.
class Fields {
 public:
  // body outlives this. prefix: of the names in messages, such as "stream_options.".
  explicit Fields(const Json& body, std::string prefix = "");

  // nullptr where it is absent.
  const Json* find(std::string_view name);
  // A whole number, written as one (5, not 5.0 or "5").
  std::optional<int64_t> integer(std::string_view name, int64_t min, int64_t max);
  // Finite; min itself isn't allowed where above_min.
  std::optional<double> number(std::string_view name, double min, double max,
                               bool above_min = false);
  std::optional<bool> boolean(std::string_view name);
  const std::string* text(std::string_view name, size_t max_bytes);
  // An object or a list of at most max_entries.
  const Json* object(std::string_view name);
  const Json* list(std::string_view name, size_t max_entries);
  // Token ids within the vocabulary.
  std::vector<int32_t> token_ids(std::string_view name, size_t max_entries, int32_t vocab);

  // Names that are known but of no effect here.
  void ignore(std::initializer_list<std::string_view> names);
  // A fault if the field is there and neither null, false, 0 nor empty.
  void refuse(std::string_view name, std::string_view why);
  // What is wrong with an object inside.
  void fail_as(const Fields& inner) {
    if (!error_) error_ = inner.error_;
  }
  void fail(std::string_view name, const std::string& what);  // "NAME: what"

  // The fields that nobody has asked for, the first hundred.
  [[nodiscard]] std::vector<std::string> unknown() const;
  [[nodiscard]] const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& body_;
  std::string prefix_;
  std::vector<std::string> known_;
  std::optional<ApiError> error_;
};

// The ids of a list, each a whole number within the vocabulary. Otherwise what is wrong.
std::optional<std::string> read_ids(const Json& list, int32_t vocab, std::vector<int32_t>* ids);

}  // namespace kvart::server
