// A template's values: what Python would hold, immutable and shared, with integers of 128 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvart::jinja {

class Value;
struct Statement;
using Integer = __int128;

struct Namespace;
struct List;
struct Dict;
struct Loop;
struct Callable;

struct Undefined {
  std::shared_ptr<const std::string> name;  // of what was looked up, for the error; may be null
};

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;

  Value() = default;  // undefined
  static Value undefined(std::string_view name);
  static Value none() { return Value(State(std::in_place_index<1>)); }
  static Value boolean(bool b) { return Value(State(b)); }
  static Value integer(Integer i) { return Value(State(i)); }
  static Value floating(double d) { return Value(State(d)); }
  static Value string(std::string s);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict(Dict entries);
  static Value name_space(Namespace* n) { return Value(State(n)); }
  static Value loop(std::shared_ptr<const Loop> loop) { return Value(State(std::move(loop))); }
  static Value callable(Callable callable);

  bool is_undefined() const { return state_.index() == 0; }
  bool is_none() const { return state_.index() == 1; }
  bool is_boolean() const { return std::holds_alternative<bool>(state_); }
  bool is_integer() const { return std::holds_alternative<Integer>(state_); }
  bool is_floating() const { return std::holds_alternative<double>(state_); }
  bool is_number() const { return is_boolean() || is_integer() || is_floating(); }
  bool is_integral() const { return is_boolean() || is_integer(); }
  bool is_string() const { return std::holds_alternative<Text>(state_); }
  bool is_sequence() const { return std::holds_alternative<Sequence>(state_); }
  bool is_tuple() const;
  bool is_dict() const { return std::holds_alternative<Mapping>(state_); }
  bool is_namespace() const { return std::holds_alternative<Namespace*>(state_); }
  bool is_loop() const { return std::holds_alternative<std::shared_ptr<const Loop>>(state_); }
  bool is_callable() const { return std::holds_alternative<Function>(state_); }

  // Precondition of each: the value is of that kind (as_integer: is_integral(); as_double:
  // is_number()).
  Integer as_integer() const;
  double as_double() const;
  const std::string& as_string() const { return *std::get<Text>(state_); }
  const std::vector<Value>& as_items() const;  // of a list or a tuple
  const Dict& as_dict() const { return *std::get<Mapping>(state_); }
  Namespace& as_namespace() const { return *std::get<Namespace*>(state_); }
  const Loop& as_loop() const { return *std::get<std::shared_ptr<const Loop>>(state_); }
  const Callable& as_callable() const { return *std::get<Function>(state_); }
  const std::string* undefined_name() const { return std::get<Undefined>(state_).name.get(); }

  bool truthy() const;
  int depth() const;              // how deep containers nest in it; a scalar has 0
  std::uint64_t weight() const;   // how much a walk over all of it, shared parts repeated, costs
  const void* identity() const;   // of the object that it shares; null for a scalar
  const char* kind_name() const;  // for messages: "string", "dict", ...

 private:
  using Sequence = std::shared_ptr<const List>;
  using Mapping = std::shared_ptr<const Dict>;
  using Function = std::shared_ptr<const Callable>;
  using State = std::variant<Undefined, std::monostate, bool, Integer, double, Text, Sequence,
                             Mapping, Namespace*, std::shared_ptr<const Loop>, Function>;

  explicit Value(State state) : state_(std::move(state)) {}

  State state_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
  std::uint64_t weight = 1;
};

// Attributes that a template may set. Owned by the render, so that values never form cycles.
struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
  const Value* find(std::string_view name) const;
};

// The order of a dict's index, total over all hashable values; equal keys are each other's
// equivalents.
struct KeyOrder {
  using is_transparent = void;
  bool operator()(const Value& a, const Value& b) const { return compare(a, b) < 0; }
  bool operator()(const Value& a, std::string_view b) const { return compare(a, b) < 0; }
  bool operator()(std::string_view a, const Value& b) const { return compare(b, a) > 0; }

  static int compare(const Value& a, const Value& b);
  static int compare(const Value& a, std::string_view b);
};

// Entries in order of insertion, found through an ordered index: no choice of keys can slow it.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::map<Value, std::size_t, KeyOrder> index;
  int depth = 1;
  std::uint64_t weight = 1;

  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;
  void set(const Value& key, Value value);
};

// The `loop` of a for statement.
struct Loop {
  Value items;  // a list
  std::size_t index0 = 0;
  int depth0 = 0;  // of a recursive loop: how often it has called itself
  const Statement* statement = nullptr;
  std::uint64_t scope = 0;  // around the statement
};

// A macro, a function of the language, or a method bound to its object.
struct Callable {
  enum class Kind { macro, function, method };
  Kind kind = Kind::function;
  std::string name;
  const Statement* macro = nullptr;
  Value self;
  std::uint64_t scope = 0;  // in which a macro was made
};

// Equality as Python has it (1 == 1.0 == True). Recursion is bounded by depth(), work by weight().
bool equal(const Value& a, const Value& b);
// Exact order of two numbers: -1, 0 or 1; 2 when one is not a number (NaN).
int compare_numbers(const Value& a, const Value& b);

// JSON as a value; undefined when it nests deeper than max_depth or holds binary data.
Value from_json(const nlohmann::ordered_json& json, int max_depth);

}  // namespace kvart::jinja
