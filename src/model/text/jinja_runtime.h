// What a running template may use up, and the operations on its values. The first error sticks:
// operations after it give undefined, and the interpreter stops at the next statement.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/text/jinja_value.h"

namespace kvart::jinja {

struct Limits {
  std::uint64_t work = 100'000'000;  // steps of the interpreter and of the walks over values
  std::uint64_t memory_bytes = 256ull << 20;  // all that the template creates, freed or not
  std::size_t output_bytes = 64u << 20;
  std::size_t range_items = 100'000;
  int depth = 400;        // expressions and statements around one another, macros included
  int macro_depth = 50;   // macros that call one another
  int value_depth = 128;  // lists and dicts inside one another
  std::uint64_t value_weight = 16'000'000;
};

struct Options {
  Limits limits;
  std::optional<std::tm> now;  // for strftime_now(); the clock if it is not set
};

class Runtime {
 public:
  explicit Runtime(const Options& options) : options_(options) {}

  const Options& options() const { return options_; }
  const Limits& limits() const { return options_.limits; }
  bool failed() const { return error_.has_value(); }
  const Error& error() const { return *error_; }

  // Undefined, and the error is kept if it is the first.
  Value fail(const std::string& what, ErrorCode code = ErrorCode::invalid_argument);
  Value unsupported(const std::string& what) { return fail(what, ErrorCode::unsupported); }
  Value over_limit(const std::string& what, std::uint64_t limit);
  // Whether there is that much left.
  bool charge(std::uint64_t work);
  bool charge_bytes(std::uint64_t bytes);
  bool charge_reading(std::string_view text) { return charge(1 + text.size() / 4); }
  // The value, unless it nests too deep or weighs too much.
  Value checked(Value value);

  // Where the template is, for errors; and how deep.
  int line = 1;
  std::string_view construct = "template";
  int depth = 0;

 private:
  const Options& options_;
  std::uint64_t work_ = 0;
  std::uint64_t bytes_ = 0;
  std::optional<Error> error_;
};

// A text that grows within the limits.
class TextBuilder {
 public:
  explicit TextBuilder(Runtime& runtime) : runtime_(runtime) {}
  TextBuilder& operator<<(std::string_view text);
  void repeat(std::string_view text, Integer times);
  Value value() { return Value::string(std::move(text_)); }
  std::string take() { return std::move(text_); }

 private:
  Runtime& runtime_;
  std::string text_;
};

// As Python's str() and, for what is inside of lists and dicts, repr().
std::string to_text(Runtime& runtime, const Value& value);
void append_text(Runtime& runtime, const Value& value, TextBuilder& out);
void append_repr(Runtime& runtime, const Value& value, TextBuilder& out);

Value binary(Runtime& runtime, std::string_view sign, const Value& a, const Value& b);
Value negate(Runtime& runtime, const Value& a);
// word: == != < <= > >= in, "not in"
bool compare(Runtime& runtime, std::string_view word, const Value& a, const Value& b);
// What a for loop over it would see.
std::vector<Value> items_of(Runtime& runtime, const Value& value);
// The length; an error if it has none.
std::size_t length_of(Runtime& runtime, const Value& value);
bool is_hashable(const Value& value);

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
Value get_item(Runtime& runtime, const Value& object, const Value& key);
Value get_slice(Runtime& runtime, const Value& object, const Value* start, const Value* stop,
                const Value* step);

}  // namespace kvart::jinja
