// The interpreter: runs a template's statements and computes its expressions.
#include "model/text/jinja.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <new>
#include <utility>

#include "model/file/printable.h"
#include "model/text/jinja_builtins.h"
#include "model/text/jinja_lexer.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

struct Scope {
  std::map<std::string_view, Value> names;
  const Scope* parent = nullptr;
};

enum class Flow { normal, leave_loop, next_iteration };

class Interpreter {
 public:
  Interpreter(const Context& context, const Options& options)
      : context_(context), runtime_(options) {}

  Result<std::string> run(const Block& block) {
    Scope root;
    root_ = &root;
    execute(block, root);
    if (runtime_.failed()) {
      return runtime_.error();
    }
    return std::move(output_);
  }

 private:
  // One level deeper while it lives, at `line`; too deep is an error.
  class Level {
   public:
    Level(Runtime& runtime, int line)
        : runtime_(runtime), line_(std::exchange(runtime.line, line)) {
      if (++runtime_.depth > runtime_.limits().depth) {
        runtime_.over_limit("nested deeper", static_cast<std::uint64_t>(runtime_.limits().depth));
      }
      constexpr std::uint64_t work_per_node = 4;
      runtime_.charge(work_per_node);
    }
    ~Level() {
      --runtime_.depth;
      runtime_.line = line_;
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Runtime& runtime_;
    int line_;
  };

  Flow execute(const Block& block, Scope& scope) {
    for (const Statement& statement : block) {
      const Level level(runtime_, statement.line);
      if (runtime_.failed()) {
        return Flow::normal;
      }
      const Flow flow = execute(statement, scope);
      if (flow != Flow::normal) {
        return flow;
      }
    }
    return Flow::normal;
  }

  Flow execute(const Statement& s, Scope& scope) {
    using Kind = Statement::Kind;
    switch (s.kind) {
      case Kind::text:
        write(s.text);
        break;
      case Kind::print:
        runtime_.construct = "{{ }}";
        print(evaluate(*s.expressions[0], scope));
        break;
      case Kind::branch:
        return branch(s, scope);
      case Kind::loop:
        loop(s, scope);
        break;
      case Kind::set:
        runtime_.construct = "set";
        assign(s, evaluate(*s.expressions[0], scope), scope);
        break;
      case Kind::set_block:
        assign(s, block_value(s, scope), scope);
        break;
      case Kind::filter_block:
        print(block_value(s, scope));
        break;
      case Kind::macro:
        scope.names[s.text] = Value::callable({Callable::Kind::macro, s.text, &s, {}});
        break;
      case Kind::leave_loop:
        return Flow::leave_loop;
      case Kind::next_iteration:
        return Flow::next_iteration;
      case Kind::scope: {
        Scope inner{{}, &scope};
        execute(s.blocks[0], inner);
        break;
      }
    }
    return Flow::normal;
  }

  void write(std::string_view text) {
    if (output_.size() + text.size() > runtime_.limits().output_bytes) {
      runtime_.over_limit("more bytes of output", runtime_.limits().output_bytes);
    } else if (runtime_.charge_bytes(text.size())) {
      output_ += text;
    }
  }

  void print(const Value& value) {
    if (value.is_string()) {
      write(value.as_string());
    } else {
      write(to_text(runtime_, value));
    }
  }

  // What a block writes, as a value.
  Value capture(const Block& block, Scope& scope) {
    std::string outer = std::exchange(output_, {});
    execute(block, scope);
    std::string inner = std::exchange(output_, std::move(outer));
    runtime_.charge_bytes(Runtime::bytes_per_object);
    return Value::string(std::move(inner));
  }

  // What a statement's block writes, put through its filters.
  Value block_value(const Statement& s, Scope& scope) {
    Scope inner{{}, &scope};
    Value text = capture(s.blocks[0], inner);
    if (s.expressions.empty() || runtime_.failed()) {
      return text;
    }
    inner.names.clear();
    inner.names[block_text_name] = std::move(text);
    return evaluate(*s.expressions[0], inner);
  }

  Flow branch(const Statement& s, Scope& scope) {
    for (std::size_t i = 0; i < s.blocks.size(); ++i) {
      runtime_.construct = "if";
      if (i >= s.expressions.size() || evaluate(*s.expressions[i], scope).truthy()) {
        return runtime_.failed() ? Flow::normal : execute(s.blocks[i], scope);
      }
    }
    return Flow::normal;
  }

  // The items of a loop that pass its condition.
  Value chosen(const Statement& s, const Value& list, Scope& scope) {
    ListBuilder kept(runtime_);
    for (const Value& item : list.as_items()) {
      assign(s, item, scope);
      const bool keep = evaluate(*s.expressions[1], scope).truthy();
      if (runtime_.failed() || (keep && !kept.add(item))) {
        break;
      }
    }
    return kept.list();
  }

  void loop(const Statement& s, Scope& scope) {
    runtime_.construct = "for";
    Value list = items_of(runtime_, evaluate(*s.expressions[0], scope)).list();
    Scope inner{{}, &scope};
    if (s.expressions[1] != nullptr) {
      list = chosen(s, list, inner);
    }
    list = runtime_.checked(std::move(list));
    if (runtime_.failed()) {
      return;
    }
    const std::size_t count = list.as_items().size();
    for (std::size_t i = 0; i < count && !runtime_.failed(); ++i) {
      inner.names.clear();
      assign(s, list.as_items()[i], inner);
      inner.names["loop"] = Value::loop(std::make_shared<const Loop>(Loop{list, i}));
      runtime_.construct = "for";
      runtime_.charge(1);
      if (execute(s.blocks[0], inner) == Flow::leave_loop) {
        break;
      }
    }
    if (count == 0 && s.blocks.size() > 1 && !runtime_.failed()) {
      inner.names.clear();
      execute(s.blocks[1], inner);
    }
  }

  void assign_one(const Target& target, const Value& value, Scope& scope) {
    if (target.attribute.empty()) {
      scope.names[target.name] = value;
      return;
    }
    const Value object = look_up(target.name, scope);
    if (!object.is_namespace()) {
      runtime_.fail(in_quotes(target.name) + " is no namespace, so " +
                    in_quotes(target.name + "." + target.attribute) + " can't be set");
      return;
    }
    set_attribute(object.as_namespace(), target.attribute, value);
  }

  void set_attribute(Namespace& object, const std::string& name, const Value& value) {
    if (runtime_.charge_reading(name) && runtime_.charge_bytes(Runtime::bytes_per_object)) {
      object.attributes.insert_or_assign(name, value);
    }
  }

  void assign(const Statement& s, const Value& value, Scope& scope) {
    if (runtime_.failed()) {
      return;
    }
    if (!s.unpack) {
      assign_one(s.targets[0], value, scope);
      return;
    }
    const Items items = items_of(runtime_, value);
    if (runtime_.failed()) {
      return;
    }
    if (items.size() != s.targets.size()) {
      runtime_.fail(std::to_string(items.size()) + " values for " +
                    std::to_string(s.targets.size()) + " names");
      return;
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      assign_one(s.targets[i], items[i], scope);
    }
  }

  Value look_up(std::string_view name, const Scope& scope) {
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
    constexpr std::array<std::string_view, 3> in_macros = {"caller", "varargs", "kwargs"};
    constexpr std::array<std::string_view, 3> helpers = {"cycler", "joiner", "lipsum"};
    if ((macros_ > 0 && std::find(in_macros.begin(), in_macros.end(), name) != in_macros.end()) ||
        std::find(helpers.begin(), helpers.end(), name) != helpers.end()) {
      return runtime_.unsupported(in_quotes(name) + " is not supported");
    }
    return Value::undefined(name);
  }

  Value evaluate(const Expression& e, Scope& scope) {
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

  // The expressions that make new values.
  Value construct_value(const Expression& e, Scope& scope) {
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
        return e.kind == Kind::list ? Value::list(std::move(items))
                                    : Value::tuple(std::move(items));
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

  Value dict(const Expression& e, Scope& scope) {
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

  void put(Dict& dict, const Value& key, const Value& value) {
    if (runtime_.charge_key(key, dict.entries.size()) &&
        runtime_.charge_bytes(Runtime::bytes_per_entry)) {
      dict.set(key, value);
    }
  }

  Value slice(const Expression& e, Scope& scope) {
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

  bool comparison(const Expression& e, Scope& scope) {
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

  Arguments arguments(const Expression& e, Scope& scope) {
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

  Value filter_or_test(const Expression& e, Scope& scope) {
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

  Value call(const Expression& e, Scope& scope) {
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
    runtime_.construct = callable.macro != nullptr ? std::string_view(callable.macro->text)
                                                   : callable_name(callable);
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

  // A name that outlives the callable, for errors.
  static std::string_view callable_name(const Callable& callable) {
    if (callable.kind == Callable::Kind::method) {
      return find_method(callable.self, callable.name)->name;
    }
    return callable.name == "range" ? "range" : "call";
  }

  Value not_callable(const Expression& expression, const Value& callee, Scope& scope) {
    if (expression.kind == Expression::Kind::attribute && callee.is_undefined()) {
      const Value object = evaluate(*expression.operands[0], scope);
      return runtime_.unsupported("the method " + in_quotes(expression.text) + " of a " +
                                  object.kind_name() + " is not supported");
    }
    const std::string what = expression.text.empty() ? "a value" : in_quotes(expression.text);
    return runtime_.fail(what + " is " + callee.kind_name() + ", and can't be called");
  }

  Value call_macro(const Statement& macro, const Arguments& with) {
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

  Value call_function(std::string_view name, const Arguments& with) {
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

  const Context& context_;
  Runtime runtime_;
  std::string output_;
  std::deque<Namespace> namespaces_;
  const Scope* root_ = nullptr;
  int macros_ = 0;  // that are being run, one inside the other
};

}  // namespace

Result<Template> Template::parse(std::string_view source) {
  constexpr std::size_t source_bytes_max = 1u << 20;
  if (source.size() > source_bytes_max) {
    return template_error(ErrorCode::invalid_file, 1,
                          "a template of " + std::to_string(source.size()) +
                              " bytes, more than the limit of " + std::to_string(source_bytes_max));
  }
  Result<Block> block = parse_template(source);
  if (!block) {
    return block.error();
  }
  return Template(std::move(*block));
}

Result<std::string> Template::render(const Context& context, const Options& options) const {
  try {
    return Interpreter(context, options).run(*block_);
  } catch (const std::bad_alloc&) {  // the machine has less than the limits allow
    return template_error(ErrorCode::out_of_memory, 1,
                          "no memory left within the limit of " +
                              std::to_string(options.limits.memory_bytes) + " bytes");
  }
}

}  // namespace kvart::jinja
