// The interpreter: runs a template's statements and computes its expressions.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

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

  struct Scope {
    std::map<std::string_view, Value> names;
    const Scope* parent = nullptr;
  };

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
  Value capture(const Block& block, Scope& scope);  // what a block writes
  // What a statement's block writes, put through its filters.
  Value block_value(const Statement& s, Scope& scope);
  Flow branch(const Statement& s, Scope& scope);
  void loop(const Statement& s, Scope& scope);
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
  Value call(const Expression& e, Scope& scope);
  Value not_callable(const Expression& expression, const Value& callee, Scope& scope);
  Value call_macro(const Statement& macro, const Arguments& with);
  Value call_function(std::string_view name, const Arguments& with);

  const Context& context_;
  Runtime runtime_;
  std::string output_;
  std::deque<Namespace> namespaces_;
  const Scope* root_ = nullptr;
  int macros_ = 0;  // that are being run, one inside the other
};

}  // namespace kvart::jinja
