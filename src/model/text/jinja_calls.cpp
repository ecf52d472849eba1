// The interpreter's calls: filters, tests, methods, macros and functions.
#include <algorithm>
#include <utility>

#include "model/file/printable.h"
#include "model/text/jinja_interpreter.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

// A name that outlives the callable, for errors.
std::string_view callable_name(const Callable& callable) {
  if (callable.kind == Callable::Kind::method) {
    return find_method(callable.self, callable.name)->name;
  }
  return callable.name == "range" ? "range" : "call";
}

}  // namespace

Arguments Interpreter::arguments(const Expression& e, Scope& scope) {
  Arguments arguments;
  runtime_.charge_items(2 * (e.operands.size() - 1));
  const std::size_t named_from = e.operands.size() - e.words.size();
  for (std::size_t i = 1; i < e.operands.size(); ++i) {
    Value value = evaluate(*e.operands[i], scope);
    if (i < named_from) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(e.words[i - named_from], std::move(value));
    }
  }
  return arguments;
}

Value Interpreter::filter_or_test(const Expression& e, Scope& scope) {
  const bool filter = e.kind == Expression::Kind::filter;
  const Builtin* builtin = filter ? find_filter(e.text) : find_test(e.text);
  if (builtin == nullptr) {
    return runtime_.unsupported(std::string("the ") + (filter ? "filter " : "test ") +
                                in_quotes(e.text) + " is not supported");
  }
  const Value self = evaluate(*e.operands[0], scope);
  const Arguments with = arguments(e, scope);
  runtime_.construct = e.text;
  return runtime_.failed() ? Value() : call_builtin(runtime_, *builtin, self, with);
}

Value Interpreter::call(const Expression& e, Scope& scope) {
  const Expression& callee_expression = *e.operands[0];
  const Value callee = evaluate(callee_expression, scope);
  const Arguments with = arguments(e, scope);
  if (runtime_.failed()) {
    return {};
  }
  if (!callee.is_callable()) {
    return not_callable(callee_expression, callee, scope);
  }
  const Callable& callable = callee.as_callable();
  runtime_.construct =
      callable.macro != nullptr ? std::string_view(callable.macro->text) : callable_name(callable);
  switch (callable.kind) {
    case Callable::Kind::macro:
      return call_macro(*callable.macro, with);
    case Callable::Kind::method:
      return call_builtin(runtime_, *find_method(callable.self, callable.name), callable.self,
                          with);
    case Callable::Kind::function:
      return call_function(callable.name, with);
  }
  return {};
}

Value Interpreter::not_callable(const Expression& expression, const Value& callee, Scope& scope) {
  if (expression.kind == Expression::Kind::attribute && callee.is_undefined()) {
    const Value object = evaluate(*expression.operands[0], scope);
    return runtime_.unsupported("the method " + in_quotes(expression.text) + " of a " +
                                object.kind_name() + " is not supported");
  }
  const std::string what = expression.text.empty() ? "a value" : in_quotes(expression.text);
  return runtime_.fail(what + " is " + callee.kind_name() + ", and can't be called");
}

Value Interpreter::call_macro(const Statement& macro, const Arguments& with) {
  Scope scope{{}, root_};
  const std::size_t count = macro.parameters.size();
  if (with.positional.size() > count) {
    return runtime_.fail("the macro " + in_quotes(macro.text) + " takes at most " +
                         std::to_string(count) + " arguments");
  }
  for (std::size_t i = 0; i < with.positional.size(); ++i) {
    scope.names[macro.parameters[i]] = with.positional[i];
  }
  constexpr std::uint64_t bytes_per_name = 128;
  runtime_.charge_bytes(bytes_per_name * count);
  for (const auto& [name, value] : with.named) {
    if (!runtime_.charge(count)) {
      return {};
    }
    const auto found = std::find(macro.parameters.begin(), macro.parameters.end(), name);
    if (found == macro.parameters.end() || !scope.names.emplace(*found, value).second) {
      return runtime_.fail("the macro " + in_quotes(macro.text) + " can't take the argument " +
                           in_quotes(name));
    }
  }
  if (++macros_ > runtime_.limits().macro_depth) {
    return runtime_.over_limit("more macros that call one another",
                               static_cast<std::uint64_t>(runtime_.limits().macro_depth));
  }
  const std::size_t first_default = count - macro.expressions.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    if (scope.names.find(name) == scope.names.end()) {
      scope.names[name] = i >= first_default
                              ? evaluate(*macro.expressions[i - first_default], scope)
                              : Value::undefined(name);
    }
  }
  Value text = capture(macro.blocks[0], scope);
  --macros_;
  return text;
}

Value Interpreter::call_function(std::string_view name, const Arguments& with) {
  if (name == "range") {
    return range_list(runtime_, with);
  }
  if (name == "raise_exception") {
    constexpr std::size_t bytes_shown = 512;
    const std::string what = with.positional.empty() ? "" : to_text(runtime_, with.positional[0]);
    return runtime_.fail("the template refuses: " + printable(what, bytes_shown));
  }
  if (name == "strftime_now") {
    return time_text(runtime_, with);
  }
  if (!with.positional.empty()) {
    return runtime_.unsupported(in_quotes(name) +
                                " with arguments without a name is not supported");
  }
  if (name == "namespace") {
    runtime_.charge_bytes(Runtime::bytes_per_object);
    Namespace& made = namespaces_.emplace_back();
    for (const auto& [key, value] : with.named) {
      set_attribute(made, key, value);
    }
    return Value::name_space(&made);
  }
  Dict dict;
  for (const auto& [key, value] : with.named) {
    put(dict, Value::string(key), value);
  }
  return Value::dict(std::move(dict));
}

}  // namespace kvart::jinja
