// Tests: what may follow `is`.
#include "model/text/jinja_builtins.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

using V = const Value&;
using B = const Bound&;
using R = Runtime&;

Value yes_if(bool condition) {
  return Value::boolean(condition);
}

Value remainder_is(R runtime, V self, const Value& divisor, Integer wanted) {
  return yes_if(
      compare(runtime, "==", binary(runtime, "%", self, divisor), Value::integer(wanted)));
}

template <bool upper>
Value has_case(R runtime, V self, B) {
  const std::string text = to_text(runtime, self);
  runtime.charge_copy(text);
  bool cased = false;
  for (std::size_t at = 0; at < text.size();) {
    cased = is_cased(next_code_point(text, at)) || cased;
  }
  return yes_if(cased && (upper ? to_upper(text) : to_lower(text)) == text);
}

bool is_same(V a, V b) {
  return std::string_view(a.kind_name()) == b.kind_name() && (a.is_number() || a.is_none()) &&
         equal(a, b);
}

constexpr Builtin rows[] = {
    {"defined", "", 0, false, [](R, V v, B) { return yes_if(!v.is_undefined()); }},
    {"undefined", "", 0, false, [](R, V v, B) { return yes_if(v.is_undefined()); }},
    {"none", "", 0, false, [](R, V v, B) { return yes_if(v.is_none()); }},
    {"string", "", 0, false, [](R, V v, B) { return yes_if(v.is_string()); }},
    {"mapping", "", 0, false, [](R, V v, B) { return yes_if(v.is_dict()); }},
    {"iterable", "", 0, false,
     [](R, V v, B) {
       return yes_if(v.is_undefined() || v.is_string() || v.is_sequence() || v.is_dict() ||
                     v.is_loop());
     }},
    {"sequence", "", 0, false,
     [](R, V v, B) {
       return yes_if(v.is_undefined() || v.is_string() || v.is_sequence() || v.is_dict());
     }},
    {"number", "", 0, false, [](R, V v, B) { return yes_if(v.is_number()); }},
    {"integer", "", 0, false, [](R, V v, B) { return yes_if(v.is_integer()); }},
    {"float", "", 0, false, [](R, V v, B) { return yes_if(v.is_floating()); }},
    {"boolean", "", 0, false, [](R, V v, B) { return yes_if(v.is_boolean()); }},
    {"true", "", 0, false, [](R, V v, B) { return yes_if(v.is_boolean() && v.truthy()); }},
    {"false", "", 0, false, [](R, V v, B) { return yes_if(v.is_boolean() && !v.truthy()); }},
    {"callable", "", 0, false,
     [](R, V v, B) { return yes_if(v.is_undefined() || v.is_callable() || v.is_loop()); }},
    {"lower", "", 0, true, has_case<false>},
    {"upper", "", 0, true, has_case<true>},
    {"odd", "", 0, false, [](R r, V v, B) { return remainder_is(r, v, Value::integer(2), 1); }},
    {"even", "", 0, false, [](R r, V v, B) { return remainder_is(r, v, Value::integer(2), 0); }},
    {"divisibleby", "num", 1, false, [](R r, V v, B b) { return remainder_is(r, v, b[0], 0); }},
    {"sameas", "other", 1, false, [](R, V v, B b) { return yes_if(is_same(v, b[0])); }},
    {"equalto", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, "==", v, b[0])); }},
    {"eq", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, "==", v, b[0])); }},
    {"==", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, "==", v, b[0])); }},
    {"ne", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, "!=", v, b[0])); }},
    {"!=", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, "!=", v, b[0])); }},
    {"lt", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, "<", v, b[0])); }},
    {"lessthan", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, "<", v, b[0])); }},
    {"le", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, "<=", v, b[0])); }},
    {"gt", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, ">", v, b[0])); }},
    {"greaterthan", "other", 1, false,
     [](R r, V v, B b) { return yes_if(compare(r, ">", v, b[0])); }},
    {"ge", "other", 1, false, [](R r, V v, B b) { return yes_if(compare(r, ">=", v, b[0])); }},
    {"in", "seq", 1, false, [](R r, V v, B b) { return yes_if(compare(r, "in", v, b[0])); }},
};

}  // namespace

std::span<const Builtin> tests() {
  return rows;
}

}  // namespace kvart::jinja
