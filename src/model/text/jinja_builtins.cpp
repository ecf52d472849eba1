// How a filter, test or method is found and gets its arguments; the methods of dicts and lists.
#include "model/text/jinja_builtins.h"

#include <algorithm>

#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

const Builtin* find_in(std::span<const Builtin> rows, std::string_view name) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [name](const Builtin& b) { return b.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

// The place of a word among words with spaces between, or their number.
std::size_t place_of(std::string_view words, std::string_view word, std::size_t& count) {
  std::size_t place = std::string_view::npos;
  count = 0;
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == word) {
      place = count;
    }
    ++count;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return place;
}

}  // namespace

const Builtin* find_filter(std::string_view name) {
  const Builtin* found = find_in(text_filters(), name);
  return found != nullptr ? found : find_in(collection_filters(), name);
}

const Builtin* find_test(std::string_view name) {
  return find_in(tests(), name);
}

const Builtin* find_method(const Value& object, std::string_view name) {
  if (object.is_string()) {
    return find_in(string_methods(), name);
  }
  const std::span<const Builtin> rows = container_methods();
  constexpr std::size_t dict_rows = 4;  // first in the table
  return object.is_dict()       ? find_in(rows.first(dict_rows), name)
         : object.is_sequence() ? find_in(rows.subspan(dict_rows, 2), name)
         : object.is_loop()     ? find_in(rows.subspan(dict_rows + 2), name)
                                : nullptr;
}

namespace {

// Puts each argument in its parameter's place; false after an error.
bool bind(Runtime& runtime, const Builtin& builtin, const Arguments& arguments,
          std::vector<const Value*>& values) {
  const auto name = [&builtin] { return in_quotes(builtin.name); };
  std::string_view parameters = builtin.parameters;
  const bool variadic = parameters.starts_with("*");
  if (variadic) {
    parameters.remove_prefix(std::min<std::size_t>(2, parameters.size()));
  }
  std::size_t count = 0;
  place_of(parameters, "", count);
  if (!variadic && arguments.positional.size() > count) {
    runtime.fail(name() + " takes at most " + std::to_string(count) + " arguments");
    return false;
  }
  values.resize(count, nullptr);
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    if (variadic) {
      values.push_back(&arguments.positional[i]);
    } else {
      values[i] = &arguments.positional[i];
    }
  }
  for (const auto& [key, value] : arguments.named) {
    const std::size_t place = place_of(parameters, key, count);
    if (place == std::string_view::npos) {
      runtime.unsupported(name() + " has no argument " + in_quotes(key));
      return false;
    }
    values[place] = &value;
  }
  for (std::size_t i = 0; i < builtin.required; ++i) {
    if (i >= values.size() || values[i] == nullptr) {
      runtime.fail(name() + " needs more arguments");
      return false;
    }
  }
  return true;
}

}  // namespace

Value call_builtin(Runtime& runtime, const Builtin& builtin, const Value& self,
                   const Arguments& arguments) {
  std::vector<const Value*> values;
  runtime.charge_bytes(Runtime::bytes_per_object);
  if (!bind(runtime, builtin, arguments, values)) {
    return {};
  }
  std::uint64_t work = builtin.walks ? self.weight() : 1;
  for (const Value* value : values) {
    work += value != nullptr ? value->weight() : 0;
  }
  if (builtin.walks && self.is_string()) {  // and most give a text as long
    runtime.charge_copy(self.as_string());
  }
  if (!runtime.charge(work)) {
    return {};
  }
  return builtin.call(runtime, self, Bound(std::move(values)));
}

Integer integer_argument(Runtime& runtime, const Bound& arguments, std::size_t i,
                         Integer otherwise) {
  if (!arguments.has(i)) {
    return otherwise;
  }
  if (!arguments[i].is_integral()) {
    runtime.fail(std::string("an integer is needed as an argument, not a value of kind ") +
                 arguments[i].kind_name());
    return otherwise;
  }
  return arguments[i].as_integer();
}

std::string_view text_argument(Runtime& runtime, const Bound& arguments, std::size_t i,
                               std::string_view otherwise) {
  if (!arguments.has(i) || arguments[i].is_none()) {
    return otherwise;
  }
  if (!arguments[i].is_string()) {
    runtime.fail(std::string("a text is needed as an argument, not a value of kind ") +
                 arguments[i].kind_name());
    return otherwise;
  }
  return arguments[i].as_string();
}

Value entries_of(Runtime& runtime, const Dict& dict) {
  ListBuilder items(runtime);
  for (const auto& [key, value] : dict.entries) {
    if (!runtime.charge_bytes(Runtime::bytes_per_object + 2 * sizeof(Value)) ||
        !items.add(Value::tuple({key, value}))) {
      break;
    }
  }
  return items.list();
}

namespace {

Value dict_keys(Runtime& runtime, const Value& self, const Bound&) {
  return items_of(runtime, self).list();
}

Value dict_values(Runtime& runtime, const Value& self, const Bound&) {
  ListBuilder items(runtime);
  for (const auto& entry : self.as_dict().entries) {
    if (!items.add(entry.second)) {
      break;
    }
  }
  return items.list();
}

Value dict_items(Runtime& runtime, const Value& self, const Bound&) {
  return entries_of(runtime, self.as_dict());
}

Value dict_get(Runtime& runtime, const Value& self, const Bound& arguments) {
  if (!runtime.charge_key(arguments[0], self.as_dict().entries.size())) {
    return {};
  }
  const Value* found = self.as_dict().find(arguments[0]);
  return found != nullptr ? *found : arguments.has(1) ? arguments[1] : Value::none();
}

Value list_index(Runtime& runtime, const Value& self, const Bound& arguments) {
  const auto& items = self.as_items();
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&arguments](const Value& v) { return equal(v, arguments[0]); });
  return found == items.end() ? runtime.fail("'index': the value is not in the list")
                              : Value::integer(found - items.begin());
}

Value list_count(Runtime&, const Value& self, const Bound& arguments) {
  const auto& items = self.as_items();
  return Value::integer(std::count_if(
      items.begin(), items.end(), [&arguments](const Value& v) { return equal(v, arguments[0]); }));
}

Value loop_cycle(Runtime& runtime, const Value& self, const Bound& arguments) {
  return arguments.size() == 0 ? runtime.fail("'loop.cycle' needs arguments")
                               : arguments[self.as_loop().index0 % arguments.size()];
}

constexpr Builtin container_method_rows[] = {
    {"get", "key default", 1, false, dict_get}, {"items", "", 0, false, dict_items},
    {"keys", "", 0, false, dict_keys},          {"values", "", 0, false, dict_values},
    {"index", "value", 1, true, list_index},    {"count", "value", 1, true, list_count},
    {"cycle", "*", 1, false, loop_cycle},
};

}  // namespace

std::span<const Builtin> container_methods() {
  return container_method_rows;
}

}  // namespace kvart::jinja
