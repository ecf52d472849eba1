// The interpreter's expressions, calls aside.
#include <algorithm>
#include <array>
#include <utility>

#include "model/text/jinja_interpreter.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

Value Interpreter::look_up(std::string_view name, const Scope& scope) {
  for (const Scope* s = &scope; s != nullptr; s = s->parent) {
    if (const auto found = s->names.find(name); found != s->names.end()) {
      return found->second;
    }
  }
  if (const auto found = context_.find(name); found != context_.end()) {
    return found->second;
  }
  constexpr std::array<std::string_view, 5> functions = {"range", "namespace", "dict",
                                                         "raise_exception", "strftime_now"};
  if (std::find(functions.begin(), functions.end(), name) != functions.end()) {
    return Value::callable({Callable::Kind::function, std::string(name), nullptr, {}});
  }
  constexpr std::array<std::string_view, 3> helpers = {"cycler", "joiner", "lipsum"};
  if (std::find(helpers.begin(), helpers.end(), name) != helpers.end()) {
    return runtime_.unsupported(in_quotes(name) + " is not supported");
  }
  return Value::undefined(name);
}

Value Interpreter::evaluate(const Expression& e, Scope& scope) {
  const Level level(runtime_, e.line);
  if (runtime_.failed()) {
    return {};
  }
  using Kind = Expression::Kind;
  switch (e.kind) {
    case Kind::constant:
      return e.constant;
    case Kind::name:
      runtime_.charge_reading(e.text);
      return look_up(e.text, scope);
    case Kind::attribute:
      return get_attribute(runtime_, evaluate(*e.operands[0], scope), e.text);
    case Kind::logical_not:
      return Value::boolean(!evaluate(*e.operands[0], scope).truthy());
    case Kind::logical_and:
    case Kind::logical_or: {
      Value first = evaluate(*e.operands[0], scope);
      const bool decided = first.truthy() == (e.kind == Kind::logical_or);
      return decided ? first : evaluate(*e.operands[1], scope);
    }
    case Kind::compare:
      return Value::boolean(comparison(e, scope));
    case Kind::conditional:
      if (evaluate(*e.operands[0], scope).truthy()) {
        return evaluate(*e.operands[1], scope);
      }
      return e.operands.size() > 2 ? evaluate(*e.operands[2], scope)
                                   : Value::undefined("a condition without else");
    default:
      return runtime_.checked(construct_value(e, scope));
  }
}

Value Interpreter::construct_value(const Expression& e, Scope& scope) {
  using Kind = Expression::Kind;
  const auto operand = [&](std::size_t i) { return evaluate(*e.operands[i], scope); };
  switch (e.kind) {
    case Kind::list:
    case Kind::tuple: {
      std::vector<Value> items;
      runtime_.charge_bytes(Runtime::bytes_per_object);
      runtime_.charge_items(e.operands.size());
      for (const ExpressionPtr& item : e.operands) {
        items.push_back(evaluate(*item, scope));
      }
      return e.kind == Kind::list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    }
    case Kind::dict:
      return dict(e, scope);
    case Kind::subscript: {
      const Value object = operand(0);
      return get_item(runtime_, object, operand(1));
    }
    case Kind::slice:
      return slice(e, scope);
    case Kind::call:
      return call(e, scope);
    case Kind::filter:
    case Kind::test:
      return filter_or_test(e, scope);
    case Kind::negate:
      return negate(runtime_, operand(0));
    case Kind::plus:
      return binary(runtime_, "+", Value::integer(0), operand(0));
    case Kind::binary: {
      const Value a = operand(0);
      const Value b = operand(1);
      return runtime_.failed() ? Value() : binary(runtime_, e.text, a, b);
    }
    case Kind::concat: {
      TextBuilder out(runtime_);
      for (const ExpressionPtr& part : e.operands) {
        append_text(runtime_, evaluate(*part, scope), out);
      }
      return out.value();
    }
    default:
      return {};
  }
}

Value Interpreter::dict(const Expression& e, Scope& scope) {
  Dict dict;
  runtime_.charge_bytes(Runtime::bytes_per_object);
  for (std::size_t i = 0; i + 1 < e.operands.size(); i += 2) {
    const Value key = evaluate(*e.operands[i], scope);
    if (!is_hashable(key)) {
      return runtime_.fail("a list or a dict can't be a dict's key");
    }
    put(dict, key, evaluate(*e.operands[i + 1], scope));
  }
  return Value::dict(std::move(dict));
}

void Interpreter::put(Dict& dict, const Value& key, const Value& value) {
  if (runtime_.charge_key(key, dict.entries.size()) &&
      runtime_.charge_bytes(Runtime::bytes_per_entry)) {
    dict.set(key, value);
  }
}

Value Interpreter::slice(const Expression& e, Scope& scope) {
  const Value object = evaluate(*e.operands[0], scope);
  std::array<Value, 3> parts;
  std::array<const Value*, 3> given = {};
  for (std::size_t i = 0; i < 3; ++i) {
    if (e.operands[i + 1] != nullptr) {
      parts[i] = evaluate(*e.operands[i + 1], scope);
      given[i] = &parts[i];
    }
  }
  return runtime_.failed() ? Value() : get_slice(runtime_, object, given[0], given[1], given[2]);
}

bool Interpreter::comparison(const Expression& e, Scope& scope) {
  Value left = evaluate(*e.operands[0], scope);
  for (std::size_t i = 0; i < e.words.size(); ++i) {
    Value right = evaluate(*e.operands[i + 1], scope);
    if (runtime_.failed() || !compare(runtime_, e.words[i], left, right)) {
      return false;
    }
    left = std::move(right);
  }
  return true;
}

}  // namespace kvart::jinja
