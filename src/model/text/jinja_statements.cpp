// The interpreter's statements: what is written, branches, loops, names that are set.
#include <algorithm>
#include <memory>
#include <utility>

#include "model/text/jinja_interpreter.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

Result<std::string> Interpreter::run(const Block& block) {
  Scope root{*this, nullptr};
  execute(block, root);
  if (runtime_.failed()) {
    return runtime_.error();
  }
  return std::move(output_);
}

const Interpreter::Scope* Interpreter::find_scope(std::uint64_t id) const {
  const auto found = std::lower_bound(scopes_.begin(), scopes_.end(), id,
                                      [](const Scope* s, std::uint64_t i) { return s->id < i; });
  return found != scopes_.end() && (*found)->id == id ? *found : nullptr;
}

Interpreter::Flow Interpreter::execute(const Block& block, Scope& scope) {
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

Interpreter::Flow Interpreter::execute(const Statement& s, Scope& scope) {
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
      loop(s, evaluate(*s.expressions[0], scope), scope, 0);
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
      runtime_.charge_bytes(Runtime::bytes_per_object);
      scope.names[s.text] = Value::callable({Callable::Kind::macro, s.text, &s, {}, scope.id});
      break;
    case Kind::call_block:
      call_block(s, scope);
      break;
    case Kind::leave_loop:
      return Flow::leave_loop;
    case Kind::next_iteration:
      return Flow::next_iteration;
    case Kind::scope: {
      Scope inner{*this, &scope};
      execute(s.blocks[0], inner);
      break;
    }
  }
  return Flow::normal;
}

void Interpreter::write(std::string_view text) {
  if (output_.size() + text.size() > runtime_.limits().output_bytes) {
    runtime_.over_limit("more bytes of output", runtime_.limits().output_bytes);
  } else if (runtime_.charge_bytes(text.size())) {
    output_ += text;
  }
}

void Interpreter::print(const Value& value) {
  if (value.is_string()) {
    write(value.as_string());
  } else {
    write(to_text(runtime_, value));
  }
}

Value Interpreter::block_value(const Statement& s, Scope& scope) {
  Scope inner{*this, &scope};
  Value text = capture([&] { execute(s.blocks[0], inner); });
  if (s.expressions.empty() || runtime_.failed()) {
    return text;
  }
  inner.names.clear();
  inner.names[block_text_name] = std::move(text);
  return evaluate(*s.expressions[0], inner);
}

Interpreter::Flow Interpreter::branch(const Statement& s, Scope& scope) {
  for (std::size_t i = 0; i < s.blocks.size(); ++i) {
    runtime_.construct = "if";
    if (i >= s.expressions.size() || evaluate(*s.expressions[i], scope).truthy()) {
      return runtime_.failed() ? Flow::normal : execute(s.blocks[i], scope);
    }
  }
  return Flow::normal;
}

Value Interpreter::chosen(const Statement& s, const Value& list, Scope& scope) {
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

void Interpreter::loop(const Statement& s, const Value& items, const Scope& around, int depth0) {
  runtime_.construct = "for";
  Value list = items_of(runtime_, items).list();
  Scope inner{*this, &around};
  if (s.expressions[1] != nullptr) {
    list = chosen(s, list, inner);
  }
  list = runtime_.checked(std::move(list));
  if (runtime_.failed()) {
    return;
  }
  bool ended_one = false;  // an iteration that break or continue left doesn't count
  const std::size_t count = list.as_items().size();
  for (std::size_t i = 0; i < count && !runtime_.failed(); ++i) {
    inner.names.clear();
    assign(s, list.as_items()[i], inner);
    inner.names["loop"] =
        Value::loop(std::make_shared<const Loop>(Loop{list, i, depth0, &s, around.id}));
    runtime_.construct = "for";
    runtime_.charge(1);
    const Flow flow = execute(s.blocks[0], inner);
    ended_one = ended_one || flow == Flow::normal;
    if (flow == Flow::leave_loop) {
      break;
    }
  }
  if (!ended_one && s.blocks.size() > 1 && !runtime_.failed()) {
    inner.names.clear();
    execute(s.blocks[1], inner);
  }
}

void Interpreter::call_block(const Statement& s, Scope& scope) {
  const Statement& block = s.blocks[0][0];
  runtime_.charge_bytes(Runtime::bytes_per_object);
  const Value caller = Value::callable({Callable::Kind::macro, block.text, &block, {}, scope.id});
  const Value text = call(*s.expressions[0], scope, &caller);
  if (text.is_string()) {
    write(text.as_string());
  } else if (!runtime_.failed()) {
    runtime_.fail(std::string("what 'call' calls must give a text, not a value of kind ") +
                  text.kind_name());
  }
}

void Interpreter::assign_one(const Target& target, const Value& value, Scope& scope) {
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

void Interpreter::set_attribute(Namespace& object, const std::string& name, const Value& value) {
  if (runtime_.charge_reading(name) && runtime_.charge_bytes(Runtime::bytes_per_object)) {
    object.attributes.insert_or_assign(name, value);
  }
}

void Interpreter::assign(const Statement& s, const Value& value, Scope& scope) {
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
    runtime_.fail(std::to_string(items.size()) + " values for " + std::to_string(s.targets.size()) +
                  " names");
    return;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    assign_one(s.targets[i], items[i], scope);
  }
}

}  // namespace kvart::jinja
