// Limits of a running template, and how its values are written, walked and looked into.
#include "model/text/jinja_runtime.h"

#include <algorithm>

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

Value Runtime::over_limit(const std::string& what, std::uint64_t limit) {
  return fail("in " + quoted(construct) + ": " + what + " than the limit of " +
              std::to_string(limit));
}

bool Runtime::charge(std::uint64_t work) {
  work_ += work;
  if (work_ > limits().work) {
    over_limit("more steps", limits().work);
  }
  return !failed();
}

bool Runtime::charge_bytes(std::uint64_t bytes) {
  bytes_ += bytes;
  if (bytes_ > limits().memory_bytes) {
    over_limit("more bytes of values", limits().memory_bytes);
  }
  return !failed();
}

Value Runtime::checked(Value value) {
  if (value.depth() > limits().value_depth) {
    return over_limit("values nested deeper", static_cast<std::uint64_t>(limits().value_depth));
  }
  if (value.weight() > limits().value_weight) {
    return over_limit("a heavier value", limits().value_weight);
  }
  if (value.is_sequence()) {
    charge_bytes(value.as_items().size() * sizeof(Value));
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
    out << write_repr(value.as_string());
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

std::vector<Value> items_of(Runtime& runtime, const Value& value) {
  if (value.is_sequence()) {
    runtime.charge(value.as_items().size());
    return value.as_items();
  }
  std::vector<Value> items;
  if (value.is_dict()) {
    for (const auto& entry : value.as_dict().entries) {
      items.push_back(entry.first);
    }
  } else if (value.is_string()) {
    const std::string& text = value.as_string();
    constexpr std::size_t bytes_per_item = 96;  // a string and its handle
    if (!runtime.charge_bytes(text.size() * bytes_per_item)) {
      return items;
    }
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t start = at;
      next_code_point(text, at);
      items.push_back(Value::string(text.substr(start, at - start)));
    }
  } else if (!value.is_undefined()) {
    runtime.fail(std::string("a value of kind ") + value.kind_name() + " has no items to go over");
  }
  runtime.charge(items.size());
  return items;
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

namespace {

Value undefined_of(const Value& object, std::string_view name) {
  return Value::undefined(std::string(object.kind_name()) + "." + std::string(name));
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
  if (name == "previtem") {
    return i > 0 ? items[i - 1] : Value::undefined("loop.previtem");
  }
  if (name == "nextitem") {
    return i + 1 < items.size() ? items[i + 1] : Value::undefined("loop.nextitem");
  }
  if (name == "cycle") {
    return Value::callable({Callable::Kind::method, "cycle", nullptr, object});
  }
  return runtime.unsupported("'loop." + std::string(name) + "' is not supported");
}

}  // namespace

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (name.starts_with("__")) {
    return runtime.fail(quoted(name) + ": names that begin with '__' are internals, and refused");
  }
  if (object.is_undefined()) {
    const std::string* what = object.undefined_name();
    return runtime.fail(quoted(what != nullptr ? *what : "value") +
                        " is undefined, and so has no '" + std::string(name) + "'");
  }
  if (object.is_loop()) {
    return loop_attribute(runtime, object, name);
  }
  if (object.is_namespace()) {
    const Value* found = object.as_namespace().find(name);
    return found != nullptr ? *found : undefined_of(object, name);
  }
  if (find_method(object, name) != nullptr) {
    return Value::callable({Callable::Kind::method, std::string(name), nullptr, object});
  }
  if (object.is_dict()) {
    if (const Value* found = object.as_dict().find(name)) {
      return *found;
    }
  }
  return undefined_of(object, name);
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

}  // namespace

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  if (object.is_undefined()) {
    const std::string* what = object.undefined_name();
    return runtime.fail(quoted(what != nullptr ? *what : "value") +
                        " is undefined, and so has no items");
  }
  if (object.is_dict()) {
    if (const Value* found = object.as_dict().find(key)) {
      return *found;
    }
  }
  if (key.is_integral() && object.is_sequence()) {
    const auto at = place(key.as_integer(), object.as_items().size());
    return at ? object.as_items()[*at] : undefined_of(object, "item");
  }
  if (key.is_integral() && object.is_string()) {
    runtime.charge_reading(object.as_string());
    const std::string& text = object.as_string();
    const auto offsets = code_point_offsets(text);
    const auto at = place(key.as_integer(), offsets.size() - 1);
    return at ? Value::string(text.substr(offsets[*at], offsets[*at + 1] - offsets[*at]))
              : undefined_of(object, "item");
  }
  return key.is_string() ? get_attribute(runtime, object, key.as_string())
                         : undefined_of(object, "item");
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

}  // namespace

Value get_slice(Runtime& runtime, const Value& object, const Value* start, const Value* stop,
                const Value* step) {
  if (!object.is_string() && !object.is_sequence()) {
    if (object.is_undefined()) {
      return get_item(runtime, object, Value::none());
    }
    return undefined_of(object, "slice");
  }
  std::vector<std::size_t> offsets;
  if (object.is_string()) {
    runtime.charge_reading(object.as_string());
    offsets = code_point_offsets(object.as_string());
  }
  const auto size = Integer(object.is_string() ? offsets.size() - 1 : object.as_items().size());
  const Integer stride = slice_bound(runtime, step, -(size + 1), size + 1, 0, 1);
  if (stride == 0) {
    return runtime.fail("a slice's step can't be zero");
  }
  const Integer low = stride > 0 ? 0 : -1;
  const Integer high = stride > 0 ? size : size - 1;
  Integer at = slice_bound(runtime, start, low, high, size, stride > 0 ? low : high);
  const Integer end = slice_bound(runtime, stop, low, high, size, stride > 0 ? high : low);
  TextBuilder text(runtime);
  std::vector<Value> items;
  for (; (stride > 0 ? at < end : at > end) && runtime.charge(1); at += stride) {
    const auto i = static_cast<std::size_t>(at);
    if (object.is_string()) {
      text << std::string_view(object.as_string()).substr(offsets[i], offsets[i + 1] - offsets[i]);
    } else {
      items.push_back(object.as_items()[i]);
    }
  }
  if (object.is_string()) {
    return text.value();
  }
  return object.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace kvart::jinja
