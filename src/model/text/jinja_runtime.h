// What a running template may use up, and the operations on its values. The first error sticks:
// operations after it give undefined, and the interpreter stops at the next statement. Whatever an
// operation allocates or walks over is charged before, so that no template escapes the limits.
#pragma once

#include <chrono>
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
  std::chrono::milliseconds time{5000};       // of the clock on the wall
  std::size_t output_bytes = 64u << 20;
  std::size_t range_items = 100'000;
  int depth = 400;        // expressions and statements around one another, macros included
  int call_depth = 50;    // macros and recursive loops that call one another
  int value_depth = 128;  // lists and dicts inside one another
  std::uint64_t value_weight = 16'000'000;
};

struct Options {
  Limits limits;
  std::optional<std::tm> now;  // for strftime_now(); the clock if it is not set
};

class Runtime {
 public:
  explicit Runtime(const Options& options) : options_(options), start_(Clock::now()) {}

  const Options& options() const { return options_; }
  const Limits& limits() const { return options_.limits; }
  bool failed() const { return error_.has_value(); }
  const Error& error() const { return *error_; }

  // Undefined, and the error is kept if it is the first.
  Value fail(const std::string& what, ErrorCode code = ErrorCode::invalid_argument);
  Value unsupported(const std::string& what) { return fail(what, ErrorCode::unsupported); }
  Value over_limit(std::string_view what, std::uint64_t limit);
  // Whether there is that much left, and time.
  bool charge(std::uint64_t work);
  bool charge_bytes(std::uint64_t bytes);
  bool charge_items(std::uint64_t count) { return charge_bytes(count * bytes_per_item); }
  bool charge_reading(std::string_view text) { return charge(1 + text.size() / 4); }
  bool charge_copy(std::string_view text) {
    return charge_reading(text) && charge_bytes(text.size());
  }
  // Looking for a key, or putting one, in a dict of that many entries.
  bool charge_key(const Value& key, std::size_t entries);
  // The value, unless it nests too deep or weighs too much.
  Value checked(Value value);

  // What the small objects of a template cost with their share of a growing list or index.
  static constexpr std::uint64_t bytes_per_item = 64;     // a place in a list
  static constexpr std::uint64_t bytes_per_object = 128;  // a text, a function, an empty list
  static constexpr std::uint64_t bytes_per_entry = 320;   // a key and a value, and the index

  // Where the template is, for errors; and how deep.
  int line = 1;
  std::string_view construct = "template";
  int depth = 0;

 private:
  using Clock = std::chrono::steady_clock;

  void spend_time(std::uint64_t units);

  const Options& options_;
  Clock::time_point start_;
  std::uint64_t work_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t units_since_clock_ = 0;
  std::optional<Error> error_;
};

// A text that grows within the limits.
class TextBuilder {
 public:
  explicit TextBuilder(Runtime& runtime) : runtime_(runtime) {}
  TextBuilder& operator<<(std::string_view text);
  void repeat(std::string_view text, Integer times);
  Value value() {
    const bool room = runtime_.charge_bytes(Runtime::bytes_per_object);
    return room ? Value::string(std::move(text_)) : Value();
  }
  std::string take() { return std::move(text_); }

 private:
  Runtime& runtime_;
  std::string text_;
};

// A list that grows within the limits.
class ListBuilder {
 public:
  explicit ListBuilder(Runtime& runtime) : runtime_(runtime) {}
  // Whether there was room.
  bool add(Value value) {
    const bool room = runtime_.charge(1) && runtime_.charge_items(1);
    if (room) {
      items_.push_back(std::move(value));
    }
    return room;
  }
  bool add_text(std::string_view text) {
    return runtime_.charge_bytes(Runtime::bytes_per_object + text.size()) &&
           add(Value::string(std::string(text)));
  }
  Value list() {
    runtime_.charge_bytes(Runtime::bytes_per_object);
    return Value::list(std::move(items_));
  }

 private:
  Runtime& runtime_;
  std::vector<Value> items_;
};

// What a loop over a value sees: the items of a list, shared with it.
class Items {
 public:
  explicit Items(Value list) : list_(std::move(list)) {}
  const Value& list() const { return list_; }
  std::size_t size() const { return list_.as_items().size(); }
  const Value& operator[](std::size_t i) const { return list_.as_items()[i]; }
  auto begin() const { return list_.as_items().begin(); }
  auto end() const { return list_.as_items().end(); }

 private:
  Value list_;
};

// As Python's str() and, for what is inside of lists and dicts, repr().
std::string to_text(Runtime& runtime, const Value& value);
void append_text(Runtime& runtime, const Value& value, TextBuilder& out);
void append_repr(Runtime& runtime, const Value& value, TextBuilder& out);
void append_repr_of_text(std::string_view text, TextBuilder& out);  // in quotes
void append_json_text(std::string_view text, bool ascii, TextBuilder& out);

Value binary(Runtime& runtime, std::string_view sign, const Value& a, const Value& b);
Value negate(Runtime& runtime, const Value& a);
// word: == != < <= > >= in, "not in"
bool compare(Runtime& runtime, std::string_view word, const Value& a, const Value& b);
// What a for loop over it would see; an error if it has no items.
Items items_of(Runtime& runtime, const Value& value);
// The length; an error if it has none.
std::size_t length_of(Runtime& runtime, const Value& value);
bool is_hashable(const Value& value);

// Nothing, under a name that tells what was looked for in `object`.
Value undefined_of(Runtime& runtime, const Value& object, std::string_view name);
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
Value get_item(Runtime& runtime, const Value& object, const Value& key);
Value get_slice(Runtime& runtime, const Value& object, const Value* start, const Value* stop,
                const Value* step);

}  // namespace kvart::jinja
