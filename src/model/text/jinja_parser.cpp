// The statements of a template: tags, blocks and what is written between them.
#include "model/text/jinja_parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "model/text/jinja_expression_parser.h"
#include "model/text/jinja_lexer.h"
#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

using Words = std::initializer_list<std::string_view>;

class Parser : ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Result<Block> run() {
    Block block = statements({});
    if (failed()) {
      return error();
    }
    return block;
  }

 private:
  // Statements up to a block that begins with one of `ends` (its word is then the current token),
  // or the end.
  Block statements(Words ends) {
    Block block;
    const Nesting nesting(*this);
    const int line = current().line;
    while (!failed()) {
      if (current().kind == Token::Kind::end) {
        if (ends.size() > 0) {
          fail("a block that does not end: expected '" + std::string(*(ends.end() - 1)) +
               "' for the tag before line " + std::to_string(line + 1));
        }
        break;
      }
      if (current().kind == Token::Kind::text) {
        block.push_back(statement(Statement::Kind::text));
        block.back().text = current().text;
        next();
      } else if (current().kind == Token::Kind::print_begin) {
        block.push_back(statement(Statement::Kind::print));
        next();
        block.back().expressions.push_back(tuple_or_expression(true));
        expect(Token::Kind::print_end, "the end of '{{'");
      } else {
        next();  // of a block's begin
        const bool ended =
            std::any_of(ends.begin(), ends.end(), [this](auto word) { return is_word(word); });
        if (ended) {
          break;
        }
        tag(block);
      }
    }
    return block;
  }

  Statement statement(Statement::Kind kind) const {
    Statement s;
    s.kind = kind;
    s.line = current().line;
    return s;
  }

  void end_tag() { expect(Token::Kind::block_end, "the end of '{%'"); }

  // The end of a tag before a block, which may have a colon as in Python.
  void begin_block() {
    skip_sign(":");
    end_tag();
  }

  void tag(Block& block) {
    if (skip_word("if")) {
      block.push_back(branch());
    } else if (skip_word("for")) {
      block.push_back(loop());
    } else if (skip_word("set")) {
      block.push_back(set());
    } else if (skip_word("macro")) {
      block.push_back(macro());
    } else if (is_word("call")) {
      block.push_back(call());
    } else if (is_word("break") || is_word("continue")) {
      if (loops_ == 0) {
        fail(in_quotes(current().text) + " outside of a loop");
      }
      block.push_back(statement(is_word("break") ? Statement::Kind::leave_loop
                                                 : Statement::Kind::next_iteration));
      next();
      end_tag();
    } else if (is_word("generation")) {
      block.push_back(generation());
    } else if (is_word("filter")) {
      block.push_back(filter());
    } else {
      unknown_tag();
    }
  }

  void unknown_tag() {
    constexpr std::array<std::string_view, 11> unsupported = {
        "block", "extends",    "include", "import", "from",     "with",
        "do",    "autoescape", "trans",   "debug",  "pluralize"};
    const std::string& word = current().text;
    if (std::find(unsupported.begin(), unsupported.end(), word) != unsupported.end()) {
      fail("the tag " + in_quotes(word) + " is not supported", ErrorCode::unsupported);
    } else {
      fail("unknown tag " + (word.empty() ? describe_current() : in_quotes(word)));
    }
  }

  Statement branch() {
    Statement s = statement(Statement::Kind::branch);
    while (!failed()) {
      s.expressions.push_back(tuple_or_expression(false));
      begin_block();
      s.blocks.push_back(statements({"elif", "else", "endif"}));
      if (skip_word("elif")) {
        continue;
      }
      if (skip_word("else")) {
        begin_block();
        s.blocks.push_back(statements({"endif"}));
      }
      next();
      end_tag();
      break;
    }
    return s;
  }

  Statement loop() {
    Statement s = statement(Statement::Kind::loop);
    targets(s, false);
    if (!skip_word("in")) {
      fail("expected 'in' after a loop's names");
    }
    s.expressions.push_back(tuple_or_expression(false));
    s.expressions.push_back(skip_word("if") ? expression() : nullptr);
    s.recursive = skip_word("recursive");
    begin_block();
    ++loops_;
    s.blocks.push_back(statements({"else", "endfor"}));
    --loops_;
    if (skip_word("else")) {
      begin_block();
      s.blocks.push_back(statements({"endfor"}));
    }
    next();
    end_tag();
    return s;
  }

  // "name", "name.attribute" where `attributes` may be, or several with commas, in parentheses or
  // not.
  void targets(Statement& s, bool attributes) {
    const bool parentheses = skip_sign("(");
    do {
      if (s.unpack && current().kind != Token::Kind::name) {
        break;  // a comma at the end
      }
      if (is_sign("(")) {
        fail("names nested in names to assign are not supported", ErrorCode::unsupported);
      }
      Target target{name("a name to assign"), ""};
      if (is_reserved(target.name)) {
        fail("can't assign to " + in_quotes(target.name));
      }
      if (attributes && skip_sign(".")) {
        target.attribute = name("an attribute");
      } else {
        note_set(target.name);
      }
      s.targets.push_back(std::move(target));
      s.unpack = s.unpack || is_sign(",");
    } while (!failed() && skip_sign(","));
    if (parentheses) {
      expect_sign(")");
    }
  }

  Statement set() {
    Statement s = statement(Statement::Kind::set);
    targets(s, true);
    if (skip_sign("=")) {
      s.expressions.push_back(tuple_or_expression(true));
      end_tag();
      return s;
    }
    if (s.unpack) {
      fail("several names on a 'set' block are not supported", ErrorCode::unsupported);
    }
    s.kind = Statement::Kind::set_block;
    if (skip_sign("|")) {
      s.expressions.push_back(filter_chain(block_text()));
    }
    body(s, "endset");
    return s;
  }

  Statement filter() {
    Statement s = statement(Statement::Kind::filter_block);
    next();
    s.expressions.push_back(filter_chain(block_text()));
    body(s, "endfilter");
    return s;
  }

  // A block that keeps names to itself, from its tag's end to `end`'s.
  void body(Statement& s, std::string_view end) {
    begin_block();
    const int loops = std::exchange(loops_, 0);
    s.blocks.push_back(statements({end}));
    loops_ = loops;
    next();
    end_tag();
  }

  Statement macro() {
    Statement s = statement(Statement::Kind::macro);
    s.text = name("a macro's name");
    parameters(s);
    macro_body(s, "endmacro");
    return s;
  }

  // "{% call(parameters) name(arguments) %}": the block is a macro without a name.
  Statement call() {
    Statement s = statement(Statement::Kind::call_block);
    Statement block = statement(Statement::Kind::macro);
    next();
    block.text = names_in_macros[caller];
    if (is_sign("(")) {
      parameters(block);
    }
    s.expressions.push_back(expression());
    if (s.expressions[0]->kind != Expression::Kind::call) {
      fail("expected a call after 'call'");
    }
    macro_body(block, "endcall");
    s.blocks.emplace_back();
    s.blocks[0].push_back(std::move(block));
    return s;
  }

  void macro_body(Statement& s, std::string_view end) {
    macros_.emplace_back();
    body(s, end);
    s.reads = macros_.back().reads;
    macros_.pop_back();
    const auto place = std::find(s.parameters.begin(), s.parameters.end(), names_in_macros[caller]);
    const auto from_end = static_cast<std::size_t>(s.parameters.end() - place);
    if (s.reads[caller] && from_end > s.expressions.size()) {
      fail("the parameter 'caller' needs a default");
    }
  }

  void parameters(Statement& s) {
    expect_sign("(");
    while (!failed() && !is_sign(")")) {
      if (!s.parameters.empty()) {
        expect_sign(",");
      }
      s.parameters.push_back(name("a parameter"));
      note_set(s.parameters.back());
      if (skip_sign("=")) {
        s.expressions.push_back(expression());
      } else if (!s.expressions.empty()) {
        fail("a parameter without a default after one with it");
      }
    }
    expect_sign(")");
  }

  Statement generation() {
    Statement s = statement(Statement::Kind::scope);
    next();
    body(s, "endgeneration");
    return s;
  }

  int loops_ = 0;  // around the statement that is parsed, in its own macro
};

}  // namespace

Result<Block> parse_template(std::string_view source) {
  Result<std::vector<Token>> tokens = tokenize(source);
  if (!tokens) {
    return tokens.error();
  }
  return Parser(std::move(*tokens)).run();
}

}  // namespace kvart::jinja
