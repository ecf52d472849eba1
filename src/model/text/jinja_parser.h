// A template's syntax tree, and its making from source. Depth is bounded, so that walks may
// recurse.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/text/jinja_value.h"

namespace kvart::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    constant,
    name,
    list,
    tuple,
    dict,       // operands: key, value, key, value, ...
    attribute,  // operands[0].text
    subscript,  // operands[0][operands[1]]
    slice,      // operands[0][operands[1]:operands[2]:operands[3]], each of the three may be null
    call,       // operands[0](the others, the last of them named by `words`)
    filter,     // operands[0] | text(the others, named likewise)
    test,       // operands[0] is text(the others)
    negate,
    plus,
    logical_not,
    logical_and,
    logical_or,
    binary,       // operands[0] text operands[1]
    concat,       // all operands, written one after another
    compare,      // operands[0] words[0] operands[1] words[1] ...
    conditional,  // operands[1] if operands[0] else operands[2], which may be null
  };
  Kind kind = Kind::constant;
  int line = 1;
  int depth = 1;
  std::string text;
  Value constant;
  std::vector<ExpressionPtr> operands;
  std::vector<std::string> words;
};

struct Target {
  std::string name;
  std::string attribute;  // of a namespace; empty for a plain name
};

struct Statement;
using Block = std::vector<Statement>;

// What a macro knows besides its parameters, if its body reads it.
inline constexpr std::array<std::string_view, 3> names_in_macros = {"caller", "varargs", "kwargs"};
enum NameInMacro : std::size_t { caller, varargs, kwargs };

// The name under which an expression finds what its block has written: no source can say it.
inline constexpr std::string_view block_text_name = "(block)";

struct Statement {
  enum class Kind {
    text,
    print,         // expressions[0]
    branch,        // blocks[i] if expressions[i], else the last block
    loop,          // for targets in expressions[0] if expressions[1] (may be null): blocks[0], else
                   // blocks[1]
    set,           // targets = expressions[0]
    set_block,     // targets[0] = what blocks[0] writes, or expressions[0] of it
    filter_block,  // expressions[0] of what blocks[0] writes
    macro,       // text(parameters): blocks[0]; expressions are the defaults of the last parameters
    call_block,  // expressions[0], a call that gets the macro blocks[0][0] as its `caller`
    leave_loop,  // break
    next_iteration,  // continue
    scope,           // blocks[0], whose names stay inside
  };
  Kind kind = Kind::text;
  int line = 1;
  std::string text;
  bool unpack = false;                                  // targets share the items of one value
  bool recursive = false;                               // a loop that may call itself
  std::array<bool, names_in_macros.size()> reads = {};  // a macro's body: each of names_in_macros
  std::vector<Target> targets;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> expressions;
  std::vector<Block> blocks;
};

Result<Block> parse_template(std::string_view source);

}  // namespace kvart::jinja
