// The interpreter: runs a template's statements and computes its expressions.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvart/result.h"
#include "model/text/jinja.h"
#include "model/text/jinja_builtins.h"
#include "model/text/jinja_parser.h"
#include "model/text/jinja_runtime.h"

namespace kvart::jinja {

class Interpreter {
 public:
  Interpreter(const Context& context, const Options& options)
      : context_(context), runtime_(options) {}

  Result<std::string> run(const Block& block);

 private:
  enum class Flow { normal, leave_loop, next_iteration };

  // Names that a part of the template knows, while that part is run. What refers to one from a
  // value does so by its id, since the value may outlive it.
  class Scope {
   public:
    Scope(Interpreter& interpreter, const Scope* around)
        : parent(around), id(++interpreter.scopes_made_), interpreter_(interpreter) {
      interpreter_.scopes_.push_back(this);
    }
    ~Scope() { interpreter_.scopes_.pop_back(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    std::map<std::string_view, Value> names;
    const Scope* const parent;
    const std::uint64_t id;

   private:
    Interpreter& interpreter_;
  };

  // Null when its part of the template has ended.
  const Scope* find_scope(std::uint64_t id) const;

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

  // Statements.
  Flow execute(const Block& block, Scope& scope);
  Flow execute(const Statement& s, Scope& scope);
  void write(std::string_view text);
  void print(const Value& value);
  // What a function writes.
  template <class Write>
  Value capture(Write write) {
    std::string outer = std::exchange(output_, {});
    write();
    std::string inner = std::exchange(output_, std::move(outer));
    runtime_.charge_bytes(Runtime::bytes_per_object);
    return Value::string(std::move(inner));
  }
  // What a statement's block writes, put through its filters.
  Value block_value(const Statement& s, Scope& scope);
  Flow branch(const Statement& s, Scope& scope);
  // Over `items`, `depth0` loops inside of itself; `around` is around the statement.
  void loop(const Statement& s, const Value& items, const Scope& around, int depth0);
  void call_block(const Statement& s, Scope& scope);
  // The items of a loop that pass its condition.
  Value chosen(const Statement& s, const Value& list, Scope& scope);
  void assign(const Statement& s, const Value& value, Scope& scope);
  void assign_one(const Target& target, const Value& value, Scope& scope);
  void set_attribute(Namespace& object, const std::string& name, const Value& value);

  // Expressions.
  Value evaluate(const Expression& e, Scope& scope);
  Value construct_value(const Expression& e, Scope& scope);  // those that make new values
  Value look_up(std::string_view name, const Scope& scope);
  Value dict(const Expression& e, Scope& scope);
  void put(Dict& dict, const Value& key, const Value& value);
  Value slice(const Expression& e, Scope& scope);
  bool comparison(const Expression& e, Scope& scope);

  // Calls.
  Arguments arguments(const Expression& e, Scope& scope);
  Value filter_or_test(const Expression& e, Scope& scope);
  // caller: of a call block, else null.
  Value call(const Expression& e, Scope& scope, const Value* caller = nullptr);
  Value not_callable(const Expression& expression, const Value& callee, Scope& scope);
  Value call_macro(const Callable& callable, const Arguments& with);
  // Gives a macro's names their values; false after an error.
  bool bind(const Statement& macro, const Arguments& with, Scope& scope);
  bool bind_rest(const Statement& macro, const Arguments& with, Scope& scope);
  Value call_loop(const Loop& loop, const Arguments& with);
  bool enter_call(std::string_view what);  // into another one; false where that is too deep
  Value call_function(std::string_view name, const Arguments& with);

  const Context& context_;
  Runtime runtime_;
  std::string output_;
  std::deque<Namespace> namespaces_;
  std::vector<const Scope*> scopes_;  // that live, ascending by id
  std::uint64_t scopes_made_ = 0;
  int calls_ = 0;  // of macros and loops, one inside the other
};

}  // namespace kvart::jinja
