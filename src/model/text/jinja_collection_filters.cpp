// Filters over lists, dicts and the parts of a text. Where the language has lazy results, these
// give lists.
#include <algorithm>

#include "model/text/jinja_builtins.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

// The item's attribute by a path like "function.name" or "items.0".
Value by_path(Runtime& runtime, const Value& item, const Value& path, const Value* otherwise) {
  if (!path.is_string()) {
    return get_item(runtime, item, path);
  }
  Value value = item;
  std::string_view rest = path.as_string();
  while (!runtime.failed()) {
    const std::size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    const bool index = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    const auto number = index ? parse_integer(part, 10) : std::nullopt;
    value = get_item(runtime, value, number ? *number : Value::string(part));
    if (value.is_undefined() && otherwise != nullptr && !otherwise->is_none()) {
      value = *otherwise;
    }
    if (dot == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(dot + 1);
  }
  return value;
}

Value without_case(const Value& value) {
  return value.is_string() ? Value::string(to_lower(value.as_string())) : value;
}

Value filter_length(Runtime& runtime, const Value& self, const Bound&) {
  return Value::integer(Integer(length_of(runtime, self)));
}

Value filter_first(Runtime& runtime, const Value& self, const Bound&) {
  if (self.is_sequence() && !self.as_items().empty()) {
    return self.as_items().front();
  }
  const std::vector<Value> items = items_of(runtime, self);
  return items.empty() ? Value::undefined("the first of no items") : items.front();
}

Value filter_last(Runtime& runtime, const Value& self, const Bound&) {
  if (self.is_sequence() && !self.as_items().empty()) {
    return self.as_items().back();
  }
  const std::vector<Value> items = items_of(runtime, self);
  return items.empty() ? Value::undefined("the last of no items") : items.back();
}

Value filter_list(Runtime& runtime, const Value& self, const Bound&) {
  return Value::list(items_of(runtime, self));
}

Value filter_items(Runtime& runtime, const Value& self, const Bound&) {
  if (self.is_undefined()) {
    return Value::list({});
  }
  if (!self.is_dict()) {
    return runtime.fail(std::string("'items' needs a dict, not a value of kind ") +
                        self.kind_name());
  }
  runtime.charge(self.as_dict().entries.size());
  return entries_of(self.as_dict());
}

Value filter_reverse(Runtime& runtime, const Value& self, const Bound&) {
  std::vector<Value> items = items_of(runtime, self);
  std::reverse(items.begin(), items.end());
  if (!self.is_string()) {
    return Value::list(std::move(items));
  }
  std::string text;
  for (const Value& item : items) {
    text += item.as_string();
  }
  return Value::string(std::move(text));
}

Value filter_join(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string separator = arguments.has(0) ? to_text(runtime, arguments[0]) : "";
  const bool by_attribute = arguments.has(1) && !arguments[1].is_none();
  TextBuilder out(runtime);
  bool first = true;
  for (const Value& item : items_of(runtime, self)) {
    out << (first ? "" : separator);
    append_text(runtime, by_attribute ? by_path(runtime, item, arguments[1], nullptr) : item, out);
    first = false;
    if (runtime.failed()) {
      break;
    }
  }
  return out.value();
}

// The arguments from place `from` on, for a filter or a test that is called on each item.
Arguments rest_of(const Bound& arguments, std::size_t from) {
  Arguments rest;
  for (std::size_t i = from; i < arguments.size(); ++i) {
    rest.positional.push_back(arguments[i]);
  }
  return rest;
}

// map(attribute=..., default=...) or map("filter", its arguments)
Value filter_map(Runtime& runtime, const Value& self, const Bound& arguments) {
  constexpr std::size_t filter_place = 2;
  const Builtin* filter = nullptr;
  if (!arguments.has(0)) {
    if (!arguments.has(filter_place) || !arguments[filter_place].is_string()) {
      return runtime.fail("'map' needs the name of a filter, or an attribute");
    }
    filter = find_filter(arguments[filter_place].as_string());
    if (filter == nullptr) {
      return runtime.unsupported("the filter '" + arguments[filter_place].as_string() +
                                 "' is not supported");
    }
  }
  const Arguments rest = rest_of(arguments, filter_place + 1);
  std::vector<Value> out;
  for (const Value& item : items_of(runtime, self)) {
    out.push_back(filter != nullptr ? call_builtin(runtime, *filter, item, rest)
                                    : by_path(runtime, item, arguments[0],
                                              arguments.has(1) ? &arguments[1] : nullptr));
    if (runtime.failed()) {
      break;
    }
  }
  return Value::list(std::move(out));
}

// The items that pass (or, for the rejecting ones, fail) a test on themselves or on an attribute.
Value choose(Runtime& runtime, const Value& self, const Bound& arguments, bool by_attribute,
             bool keep) {
  const std::size_t test_place = by_attribute ? 1 : 0;
  const Builtin* test = nullptr;
  if (arguments.has(test_place)) {
    const std::string name = text_argument(runtime, arguments, test_place, "");
    test = find_test(name);
    if (test == nullptr) {
      return runtime.unsupported("the test '" + name + "' is not supported");
    }
  }
  const Arguments rest = rest_of(arguments, test_place + 1);
  std::vector<Value> out;
  for (const Value& item : items_of(runtime, self)) {
    const Value value = by_attribute ? by_path(runtime, item, arguments[0], nullptr) : item;
    const bool passes =
        test != nullptr ? call_builtin(runtime, *test, value, rest).truthy() : value.truthy();
    if (runtime.failed()) {
      break;
    }
    if (passes == keep) {
      out.push_back(item);
    }
  }
  return Value::list(std::move(out));
}

Value filter_selectattr(Runtime& runtime, const Value& self, const Bound& arguments) {
  return choose(runtime, self, arguments, true, true);
}
Value filter_rejectattr(Runtime& runtime, const Value& self, const Bound& arguments) {
  return choose(runtime, self, arguments, true, false);
}
Value filter_select(Runtime& runtime, const Value& self, const Bound& arguments) {
  return choose(runtime, self, arguments, false, true);
}
Value filter_reject(Runtime& runtime, const Value& self, const Bound& arguments) {
  return choose(runtime, self, arguments, false, false);
}

using Keyed = std::pair<Value, Value>;  // what to sort by, the item

Value sorted(Runtime& runtime, std::vector<Keyed> keyed, bool reversed) {
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&runtime, reversed](const Keyed& a, const Keyed& b) {
                     return reversed ? compare(runtime, "<", b.first, a.first)
                                     : compare(runtime, "<", a.first, b.first);
                   });
  std::vector<Value> out;
  out.reserve(keyed.size());
  for (Keyed& entry : keyed) {
    out.push_back(std::move(entry.second));
  }
  return Value::list(std::move(out));
}

Value filter_sort(Runtime& runtime, const Value& self, const Bound& arguments) {
  const bool by_attribute = arguments.has(2) && !arguments[2].is_none();
  std::vector<Keyed> keyed;
  for (const Value& item : items_of(runtime, self)) {
    const Value key = by_attribute ? by_path(runtime, item, arguments[2], nullptr) : item;
    keyed.emplace_back(arguments.flag(1, false) ? key : without_case(key), item);
    if (runtime.failed()) {
      return {};
    }
  }
  return sorted(runtime, std::move(keyed), arguments.flag(0, false));
}

Value filter_dictsort(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string by = text_argument(runtime, arguments, 1, "key");
  if (!self.is_dict() || (by != "key" && by != "value")) {
    return runtime.fail("'dictsort' needs a dict, and by='key' or by='value'");
  }
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : self.as_dict().entries) {
    const Value& wanted = by == "key" ? key : value;
    keyed.emplace_back(arguments.flag(0, false) ? wanted : without_case(wanted),
                       Value::tuple({key, value}));
  }
  return sorted(runtime, std::move(keyed), arguments.flag(2, false));
}

Value filter_unique(Runtime& runtime, const Value& self, const Bound& arguments) {
  const bool by_attribute = arguments.has(1) && !arguments[1].is_none();
  std::vector<Value> out;
  Dict seen;
  for (const Value& item : items_of(runtime, self)) {
    Value key = by_attribute ? by_path(runtime, item, arguments[1], nullptr) : item;
    key = arguments.flag(0, false) ? key : without_case(key);
    if (!is_hashable(key)) {
      return runtime.fail("'unique' can't compare lists or dicts");
    }
    if (!runtime.charge(key.is_string() ? 1 : seen.entries.size())) {
      return {};
    }
    if (seen.find(key) == nullptr) {
      seen.set(key, Value::none());
      out.push_back(item);
    }
  }
  return Value::list(std::move(out));
}

constexpr Builtin rows[] = {
    {"length", "", 0, false, filter_length},
    {"count", "", 0, false, filter_length},
    {"first", "", 0, false, filter_first},
    {"last", "", 0, false, filter_last},
    {"list", "", 0, false, filter_list},
    {"items", "", 0, false, filter_items},
    {"reverse", "", 0, false, filter_reverse},
    {"join", "d attribute", 0, false, filter_join},
    {"map", "* attribute default", 0, false, filter_map},
    {"selectattr", "*", 1, false, filter_selectattr},
    {"rejectattr", "*", 1, false, filter_rejectattr},
    {"select", "*", 0, false, filter_select},
    {"reject", "*", 0, false, filter_reject},
    {"sort", "reverse case_sensitive attribute", 0, true, filter_sort},
    {"dictsort", "case_sensitive by reverse", 0, true, filter_dictsort},
    {"unique", "case_sensitive attribute", 0, false, filter_unique},
};

}  // namespace

std::span<const Builtin> collection_filters() {
  return rows;
}

}  // namespace kvart::jinja
