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

Value Interpreter::call(const Expression& e, Scope& scope, const Value* caller) {
  const Expression& callee_expression = *e.operands[0];
  const Value callee = evaluate(callee_expression, scope);
  Arguments with = arguments(e, scope);
  if (caller != nullptr) {
    with.named.emplace_back(names_in_macros[NameInMacro::caller], *caller);
  }
  if (runtime_.failed()) {
    return {};
  }
  if (callee.is_loop()) {
    runtime_.construct = "loop";
    return call_loop(callee.as_loop(), with);
  }
  if (!callee.is_callable()) {
    return not_callable(callee_expression, callee, scope);
  }
  const Callable& callable = callee.as_callable();
  runtime_.construct =
      callable.macro != nullptr ? std::string_view(callable.macro->text) : callable_name(callable);
  switch (callable.kind) {
    case Callable::Kind::macro:
      return call_macro(callable, with);
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

bool Interpreter::enter_call(std::string_view what) {
  if (++calls_ > runtime_.limits().call_depth) {
    runtime_.over_limit(what, static_cast<std::uint64_t>(runtime_.limits().call_depth));
  }
  return !runtime_.failed();
}

// What is neither a parameter nor its value: `caller`, `varargs` and `kwargs`, where the body reads
// them.
bool Interpreter::bind_rest(const Statement& macro, const Arguments& with, Scope& scope) {
  const auto is_parameter = [&macro](std::string_view name) {
    return std::find(macro.parameters.begin(), macro.parameters.end(), name) !=
           macro.parameters.end();
  };
  const std::size_t count = macro.parameters.size();
  const bool takes_caller = macro.reads[caller] && !is_parameter(names_in_macros[caller]);
  const bool takes_varargs = macro.reads[varargs] && !is_parameter(names_in_macros[varargs]);
  const bool takes_kwargs = macro.reads[kwargs] && !is_parameter(names_in_macros[kwargs]);
  if (takes_caller) {
    scope.names[names_in_macros[caller]] = Value::undefined(names_in_macros[caller]);
  }
  if (takes_varargs) {
    const auto from = static_cast<std::ptrdiff_t>(std::min(count, with.positional.size()));
    runtime_.charge_bytes(Runtime::bytes_per_object);
    scope.names[names_in_macros[varargs]] =
        Value::tuple({with.positional.begin() + from, with.positional.end()});
  } else if (with.positional.size() > count) {
    runtime_.fail("the macro " + in_quotes(macro.text) + " takes at most " + std::to_string(count) +
                  " arguments");
  }
  Dict others;
  for (const auto& [name, value] : with.named) {
    if (!runtime_.charge(1 + count)) {
      break;
    }
    const auto place = std::find(macro.parameters.begin(), macro.parameters.end(), name);
    if (place != macro.parameters.end() && scope.names.emplace(*place, value).second) {
      continue;
    }
    if (takes_caller && name == names_in_macros[caller]) {
      scope.names[names_in_macros[caller]] = value;
    } else if (takes_kwargs) {
      put(others, Value::string(name), value);
    } else {
      runtime_.fail("the macro " + in_quotes(macro.text) + " can't take the argument " +
                    in_quotes(name));
    }
  }
  if (takes_kwargs) {
    scope.names[names_in_macros[kwargs]] = Value::dict(std::move(others));
  }
  return !runtime_.failed();
}

bool Interpreter::bind(const Statement& macro, const Arguments& with, Scope& scope) {
  const std::size_t count = macro.parameters.size();
  constexpr std::uint64_t bytes_per_name = 128;
  runtime_.charge_bytes(bytes_per_name * (count + names_in_macros.size()));
  for (std::size_t i = 0; i < std::min(count, with.positional.size()); ++i) {
    scope.names[macro.parameters[i]] = with.positional[i];
  }
  if (!bind_rest(macro, with, scope)) {
    return false;
  }
  const std::size_t first_default = count - macro.expressions.size();
  for (std::size_t i = 0; i < count && !runtime_.failed(); ++i) {
    const std::string& name = macro.parameters[i];
    if (scope.names.find(name) == scope.names.end()) {
      scope.names[name] = i >= first_default
                              ? evaluate(*macro.expressions[i - first_default], scope)
                              : Value::undefined(name);
    }
  }
  return !runtime_.failed();
}

Value Interpreter::call_macro(const Callable& callable, const Arguments& with) {
  const Statement& macro = *callable.macro;
  const Scope* around = find_scope(callable.scope);
  if (around == nullptr) {
    return runtime_.unsupported("the macro " + in_quotes(macro.text) +
                                " can't be called: the block in which it was made has ended");
  }
  Scope scope{*this, around};
  if (!enter_call("more macros that call one another") || !bind(macro, with, scope)) {
    return {};
  }
  Value text = capture([&] { execute(macro.blocks[0], scope); });
  --calls_;
  return text;
}

Value Interpreter::call_loop(const Loop& loop, const Arguments& with) {
  if (!loop.statement->recursive) {
    return runtime_.fail("'loop' can't be called, since its loop isn't 'recursive'");
  }
  const bool named =
      with.positional.empty() && with.named.size() == 1 && with.named[0].first == "iterable";
  if (!named && (with.positional.size() != 1 || !with.named.empty())) {
    return runtime_.fail("'loop' takes one argument");
  }
  const Scope* around = find_scope(loop.scope);
  if (around == nullptr) {
    return runtime_.unsupported("'loop' can't be called: its loop has ended");
  }
  if (!enter_call("more loops that call one another")) {
    return {};
  }
  const Value& items = named ? with.named[0].second : with.positional[0];
  Value text = capture([&] { this->loop(*loop.statement, items, *around, loop.depth0 + 1); });
  --calls_;
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
