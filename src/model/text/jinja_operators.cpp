// Arithmetic and comparison of a template's values, as Python has them.
#include <algorithm>
#include <cmath>

#include "model/text/jinja_runtime.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

Value type_error(Runtime& runtime, std::string_view sign, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) {
      const std::string* name = value->undefined_name();
      return runtime.fail(in_quotes(name != nullptr ? *name : "value") +
                          " is undefined, and can't be used with '" + std::string(sign) + "'");
    }
  }
  return runtime.fail(in_quotes(sign) + " can't be used with kinds " + a.kind_name() + " and " +
                      b.kind_name());
}

Value integer_power(Runtime& runtime, Integer base, Integer exponent) {
  if (exponent < 0) {
    if (base == 0) {
      return runtime.fail("division by zero in '**'");
    }
    return Value::floating(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1 || base == -1) {
    return Value::integer(exponent == 0 ? 1 : exponent % 2 == 0 ? base * base : base);
  }
  Integer result = 1;
  for (Integer i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) {
      return runtime.unsupported("integers of more than 128 bits are not supported ('**')");
    }
  }
  return Value::integer(result);
}

Value integer_arithmetic(Runtime& runtime, std::string_view sign, Integer a, Integer b) {
  Integer result = 0;
  bool overflow = false;
  if (sign == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (sign == "**") {
    return integer_power(runtime, a, b);
  } else if (b == 0) {
    return runtime.fail("division by zero in '" + std::string(sign) + "'");
  } else if (sign == "/") {
    return Value::floating(static_cast<double>(a) / static_cast<double>(b));
  } else if (b == -1) {  // the only quotient that can overflow
    overflow = sign == "//" && __builtin_sub_overflow(Integer(0), a, &result);
  } else {
    const Integer rest = a % b;
    const bool below = rest != 0 && (rest < 0) != (b < 0);
    result = sign == "//" ? a / b - (below ? 1 : 0) : rest + (below ? b : 0);
  }
  if (overflow) {
    return runtime.unsupported("integers of more than 128 bits are not supported ('" +
                               std::string(sign) + "')");
  }
  return Value::integer(result);
}

struct Division {
  double quotient;  // rounded down
  double rest;      // has the divisor's sign
};

Division floor_divide(double a, double b) {
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest == 0) {
    rest = std::copysign(0.0, b);
  } else if ((rest < 0) != (b < 0)) {
    rest += b;
    quotient -= 1;
  }
  if (quotient == 0) {
    return {std::copysign(0.0, a / b), rest};
  }
  const double whole = std::floor(quotient);
  return {quotient - whole > 0.5 ? whole + 1 : whole, rest};
}

Value float_arithmetic(Runtime& runtime, std::string_view sign, double a, double b) {
  if (sign == "+") {
    return Value::floating(a + b);
  }
  if (sign == "-") {
    return Value::floating(a - b);
  }
  if (sign == "*") {
    return Value::floating(a * b);
  }
  if (sign == "**") {
    const double result = std::pow(a, b);
    if ((std::isinf(result) && std::isfinite(a) && std::isfinite(b)) ||
        (std::isnan(result) && !std::isnan(a) && !std::isnan(b))) {
      return runtime.fail("the result of '**' is no finite number");
    }
    return Value::floating(result);
  }
  if (b == 0) {
    return runtime.fail("division by zero in '" + std::string(sign) + "'");
  }
  if (sign == "/") {
    return Value::floating(a / b);
  }
  const Division division = floor_divide(a, b);
  return Value::floating(sign == "//" ? division.quotient : division.rest);
}

Value repeat(Runtime& runtime, const Value& value, Integer times) {
  if (value.is_string()) {
    TextBuilder out(runtime);
    out.repeat(value.as_string(), times);
    return out.value();
  }
  const auto& items = value.as_items();
  std::vector<Value> out;
  if (times > 0 && !items.empty()) {
    const std::uint64_t limit = runtime.limits().memory_bytes / sizeof(Value);
    if (times > Integer(limit / items.size())) {
      return runtime.over_limit("a longer list", limit);
    }
    const auto count = static_cast<std::uint64_t>(times) * items.size();
    if (!runtime.charge(count) || !runtime.charge_items(count)) {
      return {};
    }
    out.reserve(count);
    for (Integer i = 0; i < times; ++i) {
      out.insert(out.end(), items.begin(), items.end());
    }
  }
  return value.is_tuple() ? Value::tuple(std::move(out)) : Value::list(std::move(out));
}

Value join_two(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_string()) {
    TextBuilder out(runtime);
    out << a.as_string() << b.as_string();
    return out.value();
  }
  const auto& first = a.as_items();
  const auto& second = b.as_items();
  const std::size_t count = first.size() + second.size();
  if (!runtime.charge(count) || !runtime.charge_bytes(count * sizeof(Value)) ||
      !runtime.charge_bytes(Runtime::bytes_per_object)) {
    return {};
  }
  std::vector<Value> items;
  items.reserve(count);
  items.insert(items.end(), first.begin(), first.end());
  items.insert(items.end(), second.begin(), second.end());
  return a.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace

Value binary(Runtime& runtime, std::string_view sign, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_floating() || b.is_floating()
               ? float_arithmetic(runtime, sign, a.as_double(), b.as_double())
               : integer_arithmetic(runtime, sign, a.as_integer(), b.as_integer());
  }
  if (sign == "+" && ((a.is_string() && b.is_string()) ||
                      (a.is_sequence() && b.is_sequence() && a.is_tuple() == b.is_tuple()))) {
    return join_two(runtime, a, b);
  }
  if (sign == "*") {
    if ((a.is_string() || a.is_sequence()) && b.is_integral()) {
      return repeat(runtime, a, b.as_integer());
    }
    if ((b.is_string() || b.is_sequence()) && a.is_integral()) {
      return repeat(runtime, b, a.as_integer());
    }
  }
  if (sign == "%" && a.is_string()) {
    return runtime.unsupported("formatting of a text with '%' is not supported");
  }
  return type_error(runtime, sign, a, b);
}

Value negate(Runtime& runtime, const Value& a) {
  if (a.is_floating()) {
    return Value::floating(-a.as_double());
  }
  return a.is_number() ? integer_arithmetic(runtime, "-", 0, a.as_integer())
                       : type_error(runtime, "-", a, a);
}

namespace {

// -1, 0 or 1; 2 if they have no order (then an error is set, but for NaN).
int order(Runtime& runtime, std::string_view sign, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return compare_numbers(a, b);
  }
  if (a.is_string() && b.is_string()) {
    const int result = a.as_string().compare(b.as_string());
    return result < 0 ? -1 : result > 0 ? 1 : 0;
  }
  if (a.is_sequence() && b.is_sequence() && a.is_tuple() == b.is_tuple()) {
    const auto& x = a.as_items();
    const auto& y = b.as_items();
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i])) {
        return order(runtime, sign, x[i], y[i]);
      }
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  type_error(runtime, sign, a, b);
  return 2;
}

bool contains(Runtime& runtime, const Value& item, const Value& container) {
  if (container.is_string()) {
    if (!item.is_string()) {
      type_error(runtime, "in", item, container);
      return false;
    }
    runtime.charge_reading(container.as_string());
    return find_text(container.as_string(), item.as_string()) != std::string::npos;
  }
  if (container.is_dict()) {
    if (!is_hashable(item)) {
      type_error(runtime, "in", item, container);
      return false;
    }
    return runtime.charge_key(item, container.as_dict().entries.size()) &&
           container.as_dict().find(item) != nullptr;
  }
  if (container.is_sequence()) {
    const auto& items = container.as_items();
    return std::any_of(items.begin(), items.end(),
                       [&item](const Value& v) { return equal(v, item); });
  }
  if (!container.is_undefined()) {
    type_error(runtime, "in", item, container);
  }
  return false;
}

}  // namespace

bool compare(Runtime& runtime, std::string_view word, const Value& a, const Value& b) {
  // A key is found in a dict without walking over it.
  if (!runtime.charge(a.weight() + (b.is_dict() && word.ends_with("in") ? 1 : b.weight()))) {
    return false;
  }
  if (word == "==" || word == "!=") {
    return equal(a, b) == (word == "==");
  }
  if (word == "in" || word == "not in") {
    return contains(runtime, a, b) == (word == "in");
  }
  const int result = order(runtime, word, a, b);
  if (result == 2) {
    return false;
  }
  return word == "<"    ? result < 0
         : word == "<=" ? result <= 0
         : word == ">"  ? result > 0
                        : result >= 0;
}

}  // namespace kvart::jinja
