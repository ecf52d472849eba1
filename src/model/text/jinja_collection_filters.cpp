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
  while (runtime.charge_reading(rest)) {
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

Value without_case(Runtime& runtime, const Value& value) {
  if (!value.is_string() || !runtime.charge_copy(value.as_string()) ||
      !runtime.charge_bytes(Runtime::bytes_per_object)) {
    return value;
  }
  return Value::string(to_lower(value.as_string()));
}

Value filter_length(Runtime& runtime, const Value& self, const Bound&) {
  return Value::integer(Integer(length_of(runtime, self)));
}

// The first or the last letter of a text as a list of one item; other values' items.
template <bool from_start>
Items items_at_end(Runtime& runtime, const Value& self) {
  if (!self.is_string() || self.as_string().empty()) {
    return items_of(runtime, self);
  }
  const std::string_view text = self.as_string();
  std::size_t start = from_start ? 0 : text.size();
  std::size_t end = start;
  if (from_start) {
    next_code_point(text, end);
  } else {
    previous_code_point(text, start);
  }
  ListBuilder letter(runtime);
  letter.add_text(text.substr(start, end - start));
  return Items(letter.list());
}

Value filter_first(Runtime& runtime, const Value& self, const Bound&) {
  const Items items = items_at_end<true>(runtime, self);
  return items.size() == 0 ? Value::undefined("the first of no items") : items[0];
}

Value filter_last(Runtime& runtime, const Value& self, const Bound&) {
  const Items items = items_at_end<false>(runtime, self);
  return items.size() == 0 ? Value::undefined("the last of no items") : items[items.size() - 1];
}

Value filter_list(Runtime& runtime, const Value& self, const Bound&) {
  const Items items = items_of(runtime, self);
  if (!items.list().is_tuple()) {
    return items.list();
  }
  runtime.charge_items(items.size());
  return Value::list(std::vector<Value>(items.begin(), items.end()));
}

Value filter_items(Runtime& runtime, const Value& self, const Bound&) {
  if (self.is_undefined()) {
    return Value::list({});
  }
  if (!self.is_dict()) {
    return runtime.fail(std::string("'items' needs a dict, not a value of kind ") +
                        self.kind_name());
  }
  return entries_of(runtime, self.as_dict());
}

Value filter_reverse(Runtime& runtime, const Value& self, const Bound&) {
  if (self.is_string()) {
    const std::string_view text = self.as_string();
    TextBuilder out(runtime);
    for (std::size_t end = text.size(); end > 0 && runtime.charge(1);) {
      std::size_t start = end;
      previous_code_point(text, start);
      out << text.substr(start, end - start);
      end = start;
    }
    return out.value();
  }
  const Items items = items_of(runtime, self);
  if (!runtime.charge_items(items.size())) {
    return {};
  }
  std::vector<Value> reversed(items.begin(), items.end());
  std::reverse(reversed.begin(), reversed.end());
  return Value::list(std::move(reversed));
}

Value filter_join(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string separator = arguments.has(0) ? to_text(runtime, arguments[0]) : "";
  const bool by_attribute = arguments.has(1) && !arguments[1].is_none();
  TextBuilder out(runtime);
  bool first = true;
  for (const Value& item : items_of(runtime, self)) {
    out << (first ? std::string_view() : std::string_view(separator));
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

// The items that map() and select() go over: none of a value that counts as false.
Items items_if_any(Runtime& runtime, const Value& value) {
  return value.truthy() ? items_of(runtime, value) : Items(Value::list({}));
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
      return runtime.unsupported("the filter " + in_quotes(arguments[filter_place].as_string()) +
                                 " is not supported");
    }
  }
  const Arguments rest = rest_of(arguments, filter_place + 1);
  ListBuilder out(runtime);
  for (const Value& item : items_if_any(runtime, self)) {
    if (!out.add(filter != nullptr ? call_builtin(runtime, *filter, item, rest)
                                   : by_path(runtime, item, arguments[0],
                                             arguments.has(1) ? &arguments[1] : nullptr))) {
      break;
    }
  }
  return out.list();
}

// The items that pass (or, for the rejecting ones, fail) a test on themselves or on an attribute.
Value choose(Runtime& runtime, const Value& self, const Bound& arguments, bool by_attribute,
             bool keep) {
  const std::size_t test_place = by_attribute ? 1 : 0;
  const Builtin* test = nullptr;
  if (arguments.has(test_place)) {
    const std::string_view name = text_argument(runtime, arguments, test_place, "");
    test = find_test(name);
    if (test == nullptr) {
      return runtime.unsupported("the test " + in_quotes(name) + " is not supported");
    }
  }
  const Arguments rest = rest_of(arguments, test_place + 1);
  ListBuilder out(runtime);
  for (const Value& item : items_if_any(runtime, self)) {
    const Value value = by_attribute ? by_path(runtime, item, arguments[0], nullptr) : item;
    const bool passes =
        test != nullptr ? call_builtin(runtime, *test, value, rest).truthy() : value.truthy();
    if (runtime.failed() || (passes == keep && !out.add(item))) {
      break;
    }
  }
  return out.list();
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

constexpr std::uint64_t bytes_per_keyed = 256;  // with the sort's own copies and the result

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
  const Items items = items_of(runtime, self);
  for (const Value& item : items) {
    const Value key = by_attribute ? by_path(runtime, item, arguments[2], nullptr) : item;
    keyed.emplace_back(arguments.flag(1, false) ? key : without_case(runtime, key), item);
    if (!runtime.charge_bytes(bytes_per_keyed)) {
      return {};
    }
  }
  return sorted(runtime, std::move(keyed), arguments.flag(0, false));
}

Value filter_dictsort(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::string_view by = text_argument(runtime, arguments, 1, "key");
  if (!self.is_dict() || (by != "key" && by != "value")) {
    return runtime.fail("'dictsort' needs a dict, and by='key' or by='value'");
  }
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : self.as_dict().entries) {
    const Value& wanted = by == "key" ? key : value;
    if (!runtime.charge_bytes(bytes_per_keyed + Runtime::bytes_per_object)) {
      return {};
    }
    keyed.emplace_back(arguments.flag(0, false) ? wanted : without_case(runtime, wanted),
                       Value::tuple({key, value}));
  }
  return sorted(runtime, std::move(keyed), arguments.flag(2, false));
}

Value filter_unique(Runtime& runtime, const Value& self, const Bound& arguments) {
  const bool by_attribute = arguments.has(1) && !arguments[1].is_none();
  ListBuilder out(runtime);
  Dict seen;
  for (const Value& item : items_of(runtime, self)) {
    Value key = by_attribute ? by_path(runtime, item, arguments[1], nullptr) : item;
    key = arguments.flag(0, false) ? key : without_case(runtime, key);
    if (!is_hashable(key)) {
      return runtime.fail("'unique' can't compare lists or dicts");
    }
    if (!runtime.charge_key(key, seen.entries.size())) {
      return {};
    }
    if (seen.find(key) == nullptr) {
      if (!runtime.charge_bytes(Runtime::bytes_per_entry) || !out.add(item)) {
        return {};
      }
      seen.set(key, Value::none());
    }
  }
  return out.list();
}

// The sum of the items, or of an attribute of each, and `start`.
Value filter_sum(Runtime& runtime, const Value& self, const Bound& arguments) {
  const bool by_attribute = arguments.has(0) && !arguments[0].is_none();
  Value sum = arguments.has(1) ? arguments[1] : Value::integer(0);
  for (const Value& item : items_of(runtime, self)) {
    sum = binary(runtime, "+", sum,
                 by_attribute ? by_path(runtime, item, arguments[0], nullptr) : item);
    if (runtime.failed()) {
      break;
    }
  }
  return sum;
}

// The first of the least, or of the greatest, items.
template <bool least>
Value filter_extreme(Runtime& runtime, const Value& self, const Bound& arguments) {
  const bool by_attribute = arguments.has(1) && !arguments[1].is_none();
  const Items items = items_of(runtime, self);
  if (items.size() == 0) {
    return Value::undefined(least ? "the least of no items" : "the greatest of no items");
  }
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items) {
    Value key = by_attribute ? by_path(runtime, item, arguments[1], nullptr) : item;
    key = arguments.flag(0, false) ? key : without_case(runtime, key);
    if (best == nullptr || compare(runtime, least ? "<" : ">", key, best_key)) {
      best = &item;
      best_key = std::move(key);
    }
    if (runtime.failed()) {
      return {};
    }
  }
  return *best;
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
    {"sum", "attribute start", 0, false, filter_sum},
    {"min", "case_sensitive attribute", 0, true, filter_extreme<true>},
    {"max", "case_sensitive attribute", 0, true, filter_extreme<false>},
};

}  // namespace

std::span<const Builtin> collection_filters() {
  return rows;
}

}  // namespace kvart::jinja
