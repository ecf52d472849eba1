// Limits of a running template, and how its values are written, walked and looked into.
#include "model/text/jinja_runtime.h"

#include <algorithm>
#include <array>
#include <bit>

#include "model/file/printable.h"
#include "model/text/jinja_builtins.h"
#include "model/text/jinja_lexer.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

Value Runtime::fail(const std::string& what, ErrorCode code) {
  if (!error_) {
    error_ = template_error(code, line, what);
  }
  return {};
}

Value Runtime::over_limit(std::string_view what, std::uint64_t limit) {
  if (failed()) {
    return {};
  }
  return fail("in " + in_quotes(construct) + ": " + std::string(what) + " than the limit of " +
              std::to_string(limit));
}

void Runtime::spend_time(std::uint64_t units) {
  constexpr std::uint64_t units_per_look = 1u << 16;
  units_since_clock_ += units;
  if (units_since_clock_ < units_per_look) {
    return;
  }
  units_since_clock_ = 0;
  if (std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_) >=
      limits().time) {
    over_limit("more milliseconds", static_cast<std::uint64_t>(limits().time.count()));
  }
}

bool Runtime::charge(std::uint64_t work) {
  if (work > limits().work - std::min(work_, limits().work)) {
    over_limit("more steps", limits().work);
    return false;
  }
  work_ += work;
  spend_time(work);
  return !failed();
}

bool Runtime::charge_bytes(std::uint64_t bytes) {
  if (bytes > limits().memory_bytes - std::min(bytes_, limits().memory_bytes)) {
    over_limit("more bytes of values", limits().memory_bytes);
    return false;
  }
  bytes_ += bytes;
  constexpr std::uint64_t bytes_per_unit = 16;
  spend_time(bytes / bytes_per_unit);
  return !failed();
}

bool Runtime::charge_key(const Value& key, std::size_t entries) {
  const auto comparisons = static_cast<std::uint64_t>(std::bit_width(entries + 1));
  return charge(key.weight() * comparisons) &&
         (!key.is_string() || charge_reading(key.as_string()));
}

Value Runtime::checked(Value value) {
  if (value.depth() > limits().value_depth) {
    return over_limit("values nested deeper", static_cast<std::uint64_t>(limits().value_depth));
  }
  if (value.weight() > limits().value_weight) {
    return over_limit("a heavier value", limits().value_weight);
  }
  return value;
}

TextBuilder& TextBuilder::operator<<(std::string_view text) {
  if (runtime_.charge_bytes(text.size())) {
    text_ += text;
  }
  return *this;
}

void TextBuilder::repeat(std::string_view text, Integer times) {
  if (times <= 0 || text.empty()) {
    return;
  }
  const auto limit = runtime_.limits().memory_bytes;
  if (times > Integer(limit / text.size())) {
    runtime_.over_limit("a longer text", limit);
    return;
  }
  if (runtime_.charge_bytes(text.size() * static_cast<std::uint64_t>(times))) {
    for (Integer i = 0; i < times; ++i) {
      text_ += text;
    }
  }
}

std::string to_text(Runtime& runtime, const Value& value) {
  TextBuilder out(runtime);
  append_text(runtime, value, out);
  return out.take();
}

void append_text(Runtime& runtime, const Value& value, TextBuilder& out) {
  if (value.is_string()) {
    out << value.as_string();
  } else if (!value.is_undefined() && runtime.charge(value.weight())) {
    append_repr(runtime, value, out);
  }
}

void append_repr(Runtime& runtime, const Value& value, TextBuilder& out) {
  if (value.is_undefined()) {
    out << "Undefined";
  } else if (value.is_none()) {
    out << "None";
  } else if (value.is_boolean()) {
    out << (value.truthy() ? "True" : "False");
  } else if (value.is_integer()) {
    out << write_integer(value.as_integer());
  } else if (value.is_floating()) {
    out << write_float(value.as_double());
  } else if (value.is_string()) {
    append_repr_of_text(value.as_string(), out);
  } else if (value.is_sequence()) {
    out << (value.is_tuple() ? "(" : "[");
    const auto& items = value.as_items();
    for (std::size_t i = 0; i < items.size(); ++i) {
      out << (i > 0 ? ", " : "");
      append_repr(runtime, items[i], out);
    }
    out << (value.is_tuple() ? items.size() == 1 ? ",)" : ")" : "]");
  } else if (value.is_dict()) {
    std::string_view separator = "{";
    for (const auto& [key, item] : value.as_dict().entries) {
      out << separator;
      append_repr(runtime, key, out);
      out << ": ";
      append_repr(runtime, item, out);
      separator = ", ";
    }
    out << (value.as_dict().entries.empty() ? "{}" : "}");
  } else {
    runtime.unsupported(std::string("a ") + value.kind_name() + " can't be written");
  }
}

Items items_of(Runtime& runtime, const Value& value) {
  if (value.is_sequence()) {
    runtime.charge(value.as_items().size());
    return Items(value);
  }
  ListBuilder items(runtime);
  if (value.is_dict()) {
    for (const auto& entry : value.as_dict().entries) {
      if (!items.add(entry.first)) {
        break;
      }
    }
  } else if (value.is_string()) {
    const std::string_view text = value.as_string();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t start = at;
      next_code_point(text, at);
      if (!items.add_text(text.substr(start, at - start))) {
        break;
      }
    }
  } else if (!value.is_undefined()) {
    runtime.fail(std::string("a value of kind ") + value.kind_name() + " has no items to go over");
  }
  return Items(items.list());
}

std::size_t length_of(Runtime& runtime, const Value& value) {
  if (value.is_string()) {
    runtime.charge_reading(value.as_string());
    return count_code_points(value.as_string());
  }
  if (value.is_sequence()) {
    return value.as_items().size();
  }
  if (value.is_dict()) {
    return value.as_dict().entries.size();
  }
  if (value.is_loop()) {
    return value.as_loop().items.as_items().size();
  }
  if (!value.is_undefined()) {
    runtime.fail(std::string("a value of kind ") + value.kind_name() + " has no length");
  }
  return 0;
}

bool is_hashable(const Value& value) {
  if (value.is_tuple()) {
    const auto& items = value.as_items();
    return std::all_of(items.begin(), items.end(), is_hashable);
  }
  return !value.is_sequence() && !value.is_dict();
}

Value undefined_of(Runtime& runtime, const Value& object, std::string_view name) {
  constexpr std::size_t bytes_shown = 128;
  runtime.charge_bytes(Runtime::bytes_per_object);
  return Value::undefined(std::string(object.kind_name()) + "." +
                          std::string(name.substr(0, bytes_shown)));
}

namespace {

Value bound_method(Runtime& runtime, const Value& object, std::string_view name) {
  runtime.charge_bytes(Runtime::bytes_per_object);
  return Value::callable({Callable::Kind::method, std::string(name), nullptr, object});
}

Value loop_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  const Loop& loop = object.as_loop();
  const auto& items = loop.items.as_items();
  const std::size_t i = loop.index0;
  const auto number = [](std::size_t n) { return Value::integer(Integer(n)); };
  if (name == "index" || name == "index0") {
    return number(name == "index" ? i + 1 : i);
  }
  if (name == "revindex" || name == "revindex0") {
    return number(items.size() - i - (name == "revindex" ? 0 : 1));
  }
  if (name == "first" || name == "last") {
    return Value::boolean(name == "first" ? i == 0 : i + 1 == items.size());
  }
  if (name == "length") {
    return number(items.size());
  }
  if (name == "depth" || name == "depth0") {
    return Value::integer(loop.depth0 + (name == "depth" ? 1 : 0));
  }
  if (name == "previtem") {
    return i > 0 ? items[i - 1] : Value::undefined("loop.previtem");
  }
  if (name == "nextitem") {
    return i + 1 < items.size() ? items[i + 1] : Value::undefined("loop.nextitem");
  }
  if (name == "cycle") {
    return bound_method(runtime, object, "cycle");
  }
  return runtime.unsupported("'loop." + printable(name) + "' is not supported");
}

Value callable_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  constexpr std::array<std::string_view, 5> of_macros = {"name", "arguments", "catch_kwargs",
                                                         "catch_varargs", "caller"};
  if (object.as_callable().macro != nullptr &&
      std::find(of_macros.begin(), of_macros.end(), name) != of_macros.end()) {
    return runtime.unsupported("the attribute " + in_quotes(name) + " of a macro is not supported");
  }
  return undefined_of(runtime, object, name);
}

}  // namespace

namespace {

Value no_part(Runtime& runtime, const Value& undefined, const std::string& part) {
  const std::string* what = undefined.undefined_name();
  return runtime.fail(in_quotes(what != nullptr ? *what : "value") +
                      " is undefined, and so has no " + part);
}

}  // namespace

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (!runtime.charge_reading(name)) {
    return {};
  }
  if (name.starts_with("__")) {
    return runtime.fail(in_quotes(name) +
                        ": names that begin with '__' are internals, and refused");
  }
  if (object.is_undefined()) {
    return no_part(runtime, object, in_quotes(name));
  }
  if (object.is_loop()) {
    return loop_attribute(runtime, object, name);
  }
  if (object.is_callable()) {
    return callable_attribute(runtime, object, name);
  }
  if (object.is_namespace()) {
    const Value* found = object.as_namespace().find(name);
    return found != nullptr ? *found : undefined_of(runtime, object, name);
  }
  if (find_method(object, name) != nullptr) {
    return bound_method(runtime, object, name);
  }
  if (object.is_dict()) {
    if (const Value* found = object.as_dict().find(name)) {
      return *found;
    }
  }
  return undefined_of(runtime, object, name);
}

namespace {

// The place of an index that may count from the end; nothing outside.
std::optional<std::size_t> place(Integer index, std::size_t size) {
  if (index < 0) {
    index += Integer(size);
  }
  if (index < 0 || index >= Integer(size)) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(index);
}

Value letter_at(Runtime& runtime, const Value& object, Integer index) {
  const std::string_view text = object.as_string();
  runtime.charge_reading(text);
  const auto at = place(index, count_code_points(text));
  if (!at) {
    return undefined_of(runtime, object, "item");
  }
  const std::size_t start = code_point_offset(text, *at);
  std::size_t end = start;
  next_code_point(text, end);
  runtime.charge_bytes(Runtime::bytes_per_object);
  return Value::string(std::string(text.substr(start, end - start)));
}

}  // namespace

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  if (object.is_undefined()) {
    return no_part(runtime, object, "items");
  }
  if (object.is_dict()) {
    if (!runtime.charge_key(key, object.as_dict().entries.size())) {
      return {};
    }
    if (const Value* found = object.as_dict().find(key)) {
      return *found;
    }
  }
  if (key.is_integral() && object.is_sequence()) {
    const auto at = place(key.as_integer(), object.as_items().size());
    return at ? object.as_items()[*at] : undefined_of(runtime, object, "item");
  }
  if (key.is_integral() && object.is_string()) {
    return letter_at(runtime, object, key.as_integer());
  }
  return key.is_string() ? get_attribute(runtime, object, key.as_string())
                         : undefined_of(runtime, object, "item");
}

namespace {

// One bound of a slice as Python clips it, or `otherwise` if it is not given.
Integer slice_bound(Runtime& runtime, const Value* bound, Integer low, Integer high, Integer size,
                    Integer otherwise) {
  if (bound == nullptr || bound->is_none()) {
    return otherwise;
  }
  if (!bound->is_integral()) {
    runtime.fail("a slice's bounds must be integers");
    return otherwise;
  }
  const Integer value = bound->as_integer();
  return std::clamp(value < 0 ? value + size : value, low, high);
}

// Places from `at` on, `stride` apart, before `end`.
struct Places {
  Integer at;
  Integer end;
  Integer stride;
  bool done() const { return stride > 0 ? at >= end : at <= end; }
};

Value text_slice(Runtime& runtime, std::string_view text, std::size_t size, Places places) {
  TextBuilder out(runtime);
  if (places.done()) {
    return out.value();
  }
  if (places.stride == 1) {
    const std::size_t first = code_point_offset(text, static_cast<std::size_t>(places.at));
    const std::string_view rest = text.substr(first);
    out << rest.substr(0,
                       code_point_offset(rest, static_cast<std::size_t>(places.end - places.at)));
    return out.value();
  }
  std::vector<std::size_t> offsets;
  if (size != text.size()) {  // else each byte is a code point
    if (!runtime.charge_bytes((size + 1) * sizeof(std::size_t))) {
      return {};
    }
    offsets = code_point_offsets(text, size);
  }
  for (; !places.done() && runtime.charge(1); places.at += places.stride) {
    const auto i = static_cast<std::size_t>(places.at);
    out << (offsets.empty() ? text.substr(i, 1)
                            : text.substr(offsets[i], offsets[i + 1] - offsets[i]));
  }
  return out.value();
}

}  // namespace

Value get_slice(Runtime& runtime, const Value& object, const Value* start, const Value* stop,
                const Value* step) {
  if (!object.is_string() && !object.is_sequence()) {
    return object.is_undefined() ? no_part(runtime, object, "items")
                                 : undefined_of(runtime, object, "slice");
  }
  const std::size_t count = length_of(runtime, object);
  const auto size = Integer(count);
  const Integer stride = slice_bound(runtime, step, -(size + 1), size + 1, 0, 1);
  if (stride == 0) {
    return runtime.fail("a slice's step can't be zero");
  }
  const Integer low = stride > 0 ? 0 : -1;
  const Integer high = stride > 0 ? size : size - 1;
  Places places{slice_bound(runtime, start, low, high, size, stride > 0 ? low : high),
                slice_bound(runtime, stop, low, high, size, stride > 0 ? high : low), stride};
  if (runtime.failed()) {
    return {};
  }
  if (object.is_string()) {
    return text_slice(runtime, object.as_string(), count, places);
  }
  std::vector<Value> items;
  for (; !places.done() && runtime.charge(1) && runtime.charge_items(1);
       places.at += places.stride) {
    items.push_back(object.as_items()[static_cast<std::size_t>(places.at)]);
  }
  return object.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace kvart::jinja
