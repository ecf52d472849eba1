// A template's values: construction, truth, equality, and their making from JSON.
#include "model/text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace kvart::jinja {

const Value* Namespace::find(std::string_view name) const {
  const auto found = attributes.find(name);
  return found == attributes.end() ? nullptr : &found->second;
}

Value Value::undefined(std::string_view name) {
  constexpr std::size_t bytes_kept = 128;  // for messages, which show no more
  return Value(State(Undefined{std::make_shared<const std::string>(name.substr(0, bytes_kept))}));
}

Value Value::string(std::string s) {
  return Value(State(std::make_shared<const std::string>(std::move(s))));
}

namespace {

std::shared_ptr<List> make_list(std::vector<Value> items, bool tuple) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) {
    list->depth = std::max(list->depth, item.depth() + 1);
    list->weight += item.weight();
  }
  list->items = std::move(items);
  list->tuple = tuple;
  return list;
}

}  // namespace

Value Value::list(std::vector<Value> items) {
  return Value(State(Sequence(make_list(std::move(items), false))));
}

Value Value::tuple(std::vector<Value> items) {
  return Value(State(Sequence(make_list(std::move(items), true))));
}

Value Value::dict(Dict entries) {
  return Value(State(Mapping(std::make_shared<const Dict>(std::move(entries)))));
}

Value Value::callable(Callable callable) {
  return Value(State(Function(std::make_shared<const Callable>(std::move(callable)))));
}

bool Value::is_tuple() const {
  return is_sequence() && std::get<Sequence>(state_)->tuple;
}

Integer Value::as_integer() const {
  return is_boolean() ? Integer(std::get<bool>(state_)) : std::get<Integer>(state_);
}

double Value::as_double() const {
  return is_floating() ? std::get<double>(state_) : static_cast<double>(as_integer());
}

const std::vector<Value>& Value::as_items() const {
  return std::get<Sequence>(state_)->items;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) {
    return false;
  }
  if (is_floating()) {
    return as_double() != 0;
  }
  if (is_integral()) {
    return as_integer() != 0;
  }
  if (is_string()) {
    return !as_string().empty();
  }
  if (is_sequence()) {
    return !as_items().empty();
  }
  return !is_dict() || !as_dict().entries.empty();
}

int Value::depth() const {
  if (is_sequence()) {
    return std::get<Sequence>(state_)->depth;
  }
  if (is_dict()) {
    return as_dict().depth;
  }
  if (is_loop()) {
    return as_loop().items.depth() + 1;
  }
  return is_callable() ? as_callable().self.depth() + 1 : 0;
}

std::uint64_t Value::weight() const {
  constexpr std::size_t bytes_per_unit = 32;
  if (is_string()) {
    return 1 + as_string().size() / bytes_per_unit;
  }
  if (is_sequence()) {
    return std::get<Sequence>(state_)->weight;
  }
  return is_dict() ? as_dict().weight : 1;
}

const void* Value::identity() const {
  if (is_sequence()) {
    return std::get<Sequence>(state_).get();
  }
  if (is_dict()) {
    return &as_dict();
  }
  if (is_namespace()) {
    return &as_namespace();
  }
  if (is_loop()) {
    return &as_loop();
  }
  return is_callable() ? &as_callable() : nullptr;
}

const char* Value::kind_name() const {
  constexpr const char* names[] = {"undefined", "none", "boolean",   "integer", "float",   "string",
                                   "list",      "dict", "namespace", "loop",    "function"};
  return is_tuple() ? "tuple" : names[state_.index()];
}

namespace {

// Kinds whose values may be equal share a rank.
int key_rank(const Value& value) {
  return value.is_string()      ? 0
         : value.is_number()    ? 1
         : value.is_none()      ? 2
         : value.is_tuple()     ? 3
         : value.is_undefined() ? 4
         : value.is_namespace() ? 5
                                : 6;
}

int order_of(auto a, auto b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

// NaN comes after all other numbers.
int order_of_numbers(const Value& a, const Value& b) {
  const auto nan = [](const Value& v) { return v.is_floating() && std::isnan(v.as_double()); };
  return nan(a) || nan(b) ? order_of(nan(a), nan(b)) : compare_numbers(a, b);
}

}  // namespace

int KeyOrder::compare(const Value& a, const Value& b) {
  if (key_rank(a) != key_rank(b)) {
    return order_of(key_rank(a), key_rank(b));
  }
  if (a.is_string()) {
    return compare(a, std::string_view(b.as_string()));
  }
  if (a.is_number()) {
    return order_of_numbers(a, b);
  }
  if (a.is_tuple()) {
    const auto& x = a.as_items();
    const auto& y = b.as_items();
    for (std::size_t i = 0; &x != &y && i < std::min(x.size(), y.size()); ++i) {
      if (const int order = compare(x[i], y[i]); order != 0) {
        return order;
      }
    }
    return order_of(x.size(), y.size());
  }
  return order_of(a.identity(), b.identity());
}

int KeyOrder::compare(const Value& a, std::string_view b) {
  return a.is_string() ? order_of(std::string_view(a.as_string()).compare(b), 0) : 1;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &entries[found->second].second;
}

const Value* Dict::find(const Value& key) const {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &entries[found->second].second;
}

void Dict::set(const Value& key, Value value) {
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  weight += key.weight() + value.weight();
  const auto [place, is_new] = index.emplace(key, entries.size());
  if (is_new) {
    entries.emplace_back(key, std::move(value));
  } else {
    entries[place->second].second = std::move(value);
  }
}

int compare_numbers(const Value& a, const Value& b) {
  const auto order = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
  if (a.is_floating() && b.is_floating()) {
    const double x = a.as_double();
    const double y = b.as_double();
    return std::isnan(x) || std::isnan(y) ? 2 : order(x, y);
  }
  if (a.is_floating()) {
    const int reversed = compare_numbers(b, a);
    return reversed == 2 ? 2 : -reversed;
  }
  if (!b.is_floating()) {
    return order(a.as_integer(), b.as_integer());
  }
  // An integer against a float, without rounding the integer.
  const double y = b.as_double();
  if (std::isnan(y)) {
    return 2;
  }
  if (std::abs(y) >= 0x1p126) {
    return y > 0 ? -1 : 1;
  }
  const double whole = std::trunc(y);
  const int by_whole = order(a.as_integer(), static_cast<Integer>(whole));
  return by_whole != 0 ? by_whole : order(whole, y);
}

namespace {

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) {
    return false;
  }
  return std::all_of(a.entries.begin(), a.entries.end(), [&b](const auto& entry) {
    const Value* other = b.find(entry.first);
    return other != nullptr && equal(entry.second, *other);
  });
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return compare_numbers(a, b) == 0;
  }
  if (a.is_string() && b.is_string()) {
    return a.as_string() == b.as_string();
  }
  if (a.is_sequence() && b.is_sequence()) {
    const auto& x = a.as_items();
    const auto& y = b.as_items();
    return a.is_tuple() == b.is_tuple() &&
           (&x == &y || std::equal(x.begin(), x.end(), y.begin(), y.end(), equal));
  }
  if (a.is_dict() && b.is_dict()) {
    return &a.as_dict() == &b.as_dict() || equal_dicts(a.as_dict(), b.as_dict());
  }
  if (a.is_namespace() && b.is_namespace()) {
    return &a.as_namespace() == &b.as_namespace();
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

Value from_json(const nlohmann::ordered_json& json, int max_depth) {
  using Kind = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Kind::null:
      return Value::none();
    case Kind::boolean:
      return Value::boolean(json.get<bool>());
    case Kind::number_integer:
      return Value::integer(json.get<std::int64_t>());
    case Kind::number_unsigned:
      return Value::integer(json.get<std::uint64_t>());
    case Kind::number_float:
      return Value::floating(json.get<double>());
    case Kind::string:
      return Value::string(json.get_ref<const std::string&>());
    case Kind::binary:
    case Kind::discarded:
      return {};
    case Kind::array:
    case Kind::object:
      break;
  }
  if (max_depth <= 0) {
    return {};
  }
  std::vector<Value> items;
  Dict dict;
  for (auto it = json.begin(); it != json.end(); ++it) {
    Value value = from_json(*it, max_depth - 1);
    if (value.is_undefined()) {
      return {};
    }
    if (json.is_array()) {
      items.push_back(std::move(value));
    } else {
      dict.set(Value::string(it.key()), std::move(value));
    }
  }
  return json.is_array() ? Value::list(std::move(items)) : Value::dict(std::move(dict));
}

}  // namespace kvart::jinja
