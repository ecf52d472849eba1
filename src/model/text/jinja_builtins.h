// The language's filters, tests, methods and functions, each a row of a table: name, parameters,
// what it does.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/text/jinja_runtime.h"

namespace kvart::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments by the place of their parameter.
class Bound {
 public:
  explicit Bound(std::vector<const Value*> values) : values_(std::move(values)) {}
  bool has(std::size_t i) const { return i < values_.size() && values_[i] != nullptr; }
  const Value& operator[](std::size_t i) const { return *values_[i]; }  // Precondition: has(i)
  bool flag(std::size_t i, bool otherwise) const {
    return has(i) ? values_[i]->truthy() : otherwise;
  }
  std::size_t size() const { return values_.size(); }

 private:
  std::vector<const Value*> values_;
};

struct Builtin {
  std::string_view name;
  std::string_view parameters;  // words with a space between; "* names" takes these by name alone,
                                // then any number
  std::size_t required;
  bool walks;  // over all of its object, and may copy it: charged before the call
  Value (*call)(Runtime&, const Value& self, const Bound& arguments);
};

// Null if there is none.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_method(const Value& object, std::string_view name);

Value call_builtin(Runtime& runtime, const Builtin& builtin, const Value& self,
                   const Arguments& arguments);

// The integer in argument i, or `otherwise` without it; an error if it is of another kind.
Integer integer_argument(Runtime& runtime, const Bound& arguments, std::size_t i,
                         Integer otherwise);
// The text in argument i, or `otherwise` without it or if it is none; an error if it is of another
// kind.
std::string_view text_argument(Runtime& runtime, const Bound& arguments, std::size_t i,
                               std::string_view otherwise);

// Shared by filters and methods.
std::string_view strip(std::string_view text, std::string_view characters, bool left, bool right);
Value replace_text(Runtime& runtime, std::string_view text, std::string_view old,
                   std::string_view with, Integer count);
std::string capitalize(std::string_view text);
Value entries_of(Runtime& runtime, const Dict& dict);  // a list of (key, value) tuples

// The JSON text of a value; `indent` null for one line.
Value write_json(Runtime& runtime, const Value& self, const Bound& arguments);

// The functions range() and strftime_now().
Value range_list(Runtime& runtime, const Arguments& with);
Value time_text(Runtime& runtime, const Arguments& with);

// Rows of the tables' parts.
std::span<const Builtin> text_filters();
std::span<const Builtin> collection_filters();
std::span<const Builtin> tests();
std::span<const Builtin> string_methods();
std::span<const Builtin> container_methods();

}  // namespace kvart::jinja
