// The expressions of a template, in the language's order of precedence.
#include "model/text/jinja_expression_parser.h"

#include <algorithm>
#include <array>

#include "model/text/jinja_text.h"

namespace kvart::jinja {

namespace {

constexpr int nesting_max = 100;           // blocks, brackets and prefixes around one another
constexpr int expression_depth_max = 200;  // of the tree, which also chains like a.b.c deepen

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.nesting_ > nesting_max) {
    parser_.fail("nested deeper than the limit of " + std::to_string(nesting_max));
  }
}

void ExpressionParser::fail(const std::string& what, ErrorCode code) {
  if (!error_) {
    error_ = template_error(code, current().line, what);
  }
  at_ = tokens_.size() - 1;
}

bool ExpressionParser::is_word(std::string_view word) const {
  return current().kind == Token::Kind::name && current().text == word;
}

bool ExpressionParser::is_sign(std::string_view sign) const {
  return current().kind == Token::Kind::sign && current().text == sign;
}

bool ExpressionParser::skip_word(std::string_view word) {
  const bool found = is_word(word);
  if (found) {
    next();
  }
  return found;
}

bool ExpressionParser::skip_sign(std::string_view sign) {
  const bool found = is_sign(sign);
  if (found) {
    next();
  }
  return found;
}

std::string ExpressionParser::describe_current() const {
  switch (current().kind) {
    case Token::Kind::name:
    case Token::Kind::sign:
      return in_quotes(current().text);
    case Token::Kind::string:
      return "a string";
    case Token::Kind::number:
      return "a number";
    case Token::Kind::print_end:
    case Token::Kind::block_end:
      return "the tag's end";
    default:
      return "the template's end";
  }
}

void ExpressionParser::expect(Token::Kind kind, const std::string& what) {
  if (current().kind != kind) {
    fail("expected " + what + ", found " + describe_current());
  } else {
    next();
  }
}

void ExpressionParser::expect_sign(std::string_view sign) {
  if (!skip_sign(sign)) {
    fail("expected '" + std::string(sign) + "', found " + describe_current());
  }
}

std::string ExpressionParser::name(const std::string& what) {
  std::string text = current().text;
  expect(Token::Kind::name, what);
  if (text.starts_with("__")) {
    fail(in_quotes(text) + ": names that begin with '__' are internals, and refused");
  }
  return text;
}

bool ExpressionParser::is_reserved(std::string_view name) {
  constexpr std::array<std::string_view, 7> reserved = {"true", "false", "True", "False",
                                                        "none", "None",  "loop"};
  return std::find(reserved.begin(), reserved.end(), name) != reserved.end();
}

void ExpressionParser::note_read(std::string_view name) {
  for (std::size_t i = 0; i < names_in_macros.size(); ++i) {
    if (name == names_in_macros[i]) {
      for (MacroBody& macro : macros_) {
        macro.reads[i] = macro.reads[i] || !macro.sets[i];
      }
    }
  }
}

void ExpressionParser::note_set(std::string_view name) {
  for (std::size_t i = 0; i < names_in_macros.size(); ++i) {
    if (name == names_in_macros[i]) {
      for (MacroBody& macro : macros_) {
        macro.sets[i] = true;
      }
    }
  }
}

ExpressionPtr ExpressionParser::make(Kind kind, int line, std::string text) {
  auto e = std::make_unique<Expression>();
  e->kind = kind;
  e->line = line;
  e->text = std::move(text);
  return e;
}

ExpressionPtr ExpressionParser::make(Kind kind, int line, std::string text, ExpressionPtr a,
                                     ExpressionPtr b, ExpressionPtr c) {
  ExpressionPtr e = make(kind, line, std::move(text));
  add(*e, std::move(a));
  if (b != nullptr) {
    add(*e, std::move(b));
  }
  if (c != nullptr) {
    add(*e, std::move(c));
  }
  return e;
}

void ExpressionParser::add(Expression& e, ExpressionPtr operand) {
  if (operand != nullptr) {
    e.depth = std::max(e.depth, operand->depth + 1);
    if (e.depth > expression_depth_max) {
      fail("an expression deeper than the limit of " + std::to_string(expression_depth_max));
    }
  }
  e.operands.push_back(std::move(operand));
}

ExpressionPtr ExpressionParser::tuple_or_expression(bool conditional) {
  const int line = current().line;
  ExpressionPtr first = conditional ? expression() : logical_or();
  if (!is_sign(",")) {
    return first;
  }
  ExpressionPtr tuple = make(Kind::tuple, line, "", std::move(first));
  while (!failed() && skip_sign(",")) {
    const Token::Kind kind = current().kind;
    if (is_sign(")") || kind == Token::Kind::print_end || kind == Token::Kind::block_end) {
      break;
    }
    add(*tuple, conditional ? expression() : logical_or());
  }
  return tuple;
}

ExpressionPtr ExpressionParser::expression() {
  const Nesting nesting(*this);
  ExpressionPtr e = logical_or();
  while (!failed() && is_word("if")) {
    const int line = current().line;
    next();
    ExpressionPtr condition = logical_or();
    ExpressionPtr other = skip_word("else") ? expression() : nullptr;
    e = make(Kind::conditional, line, "", std::move(condition), std::move(e), std::move(other));
  }
  return e;
}

ExpressionPtr ExpressionParser::logical_or() {
  ExpressionPtr e = logical_and();
  while (!failed() && is_word("or")) {
    const int line = current().line;
    next();
    e = make(Kind::logical_or, line, "or", std::move(e), logical_and());
  }
  return e;
}

ExpressionPtr ExpressionParser::logical_and() {
  ExpressionPtr e = logical_not();
  while (!failed() && is_word("and")) {
    const int line = current().line;
    next();
    e = make(Kind::logical_and, line, "and", std::move(e), logical_not());
  }
  return e;
}

ExpressionPtr ExpressionParser::logical_not() {
  const int line = current().line;
  if (!skip_word("not")) {
    return comparison();
  }
  const Nesting nesting(*this);
  return make(Kind::logical_not, line, "not",
              failed() ? make(Kind::constant, line) : logical_not());
}

ExpressionPtr ExpressionParser::comparison() {
  const int line = current().line;
  ExpressionPtr first = sum();
  ExpressionPtr chain;
  while (!failed()) {
    std::string word;
    if (current().kind == Token::Kind::sign) {
      constexpr std::array<std::string_view, 6> signs = {"==", "!=", "<", "<=", ">", ">="};
      if (std::find(signs.begin(), signs.end(), current().text) == signs.end()) {
        break;
      }
      word = current().text;
    } else if (is_word("in")) {
      word = "in";
    } else if (is_word("not") && tokens_[at_ + 1].text == "in") {
      word = "not in";
      next();
    } else {
      break;
    }
    next();
    if (chain == nullptr) {
      chain = make(Kind::compare, line, "", std::move(first));
    }
    chain->words.push_back(word);
    add(*chain, sum());
  }
  return chain != nullptr ? std::move(chain) : std::move(first);
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr e = concatenation();
  while (!failed() && (is_sign("+") || is_sign("-"))) {
    const Token sign = current();
    next();
    e = make(Kind::binary, sign.line, sign.text, std::move(e), concatenation());
  }
  return e;
}

ExpressionPtr ExpressionParser::concatenation() {
  const int line = current().line;
  ExpressionPtr e = product();
  if (!is_sign("~")) {
    return e;
  }
  ExpressionPtr all = make(Kind::concat, line, "~", std::move(e));
  while (!failed() && skip_sign("~")) {
    add(*all, product());
  }
  return all;
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr e = power();
  while (!failed() && (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%"))) {
    const Token sign = current();
    next();
    e = make(Kind::binary, sign.line, sign.text, std::move(e), power());
  }
  return e;
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr e = unary(true);
  while (!failed() && is_sign("**")) {
    const int line = current().line;
    next();
    e = make(Kind::binary, line, "**", std::move(e), unary(true));
  }
  return e;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const int line = current().line;
  ExpressionPtr e;
  if (is_sign("-") || is_sign("+")) {
    const Nesting nesting(*this);
    const Kind kind = is_sign("-") ? Kind::negate : Kind::plus;
    next();
    e = make(kind, line, "", failed() ? make(Kind::constant, line) : unary(false));
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filters ? filters(std::move(e)) : std::move(e);
}

ExpressionPtr ExpressionParser::primary() {
  const Token token = current();
  if (token.kind == Token::Kind::name) {
    name("a name");
    ExpressionPtr e = make(Kind::constant, token.line);
    if (token.text == "true" || token.text == "True" || token.text == "false" ||
        token.text == "False") {
      e->constant = Value::boolean(token.text[0] == 't' || token.text[0] == 'T');
    } else if (token.text == "none" || token.text == "None") {
      e->constant = Value::none();
    } else {
      e->kind = Kind::name;
      e->text = token.text;
      note_read(token.text);
    }
    return e;
  }
  if (token.kind == Token::Kind::string || token.kind == Token::Kind::number) {
    ExpressionPtr e = make(Kind::constant, token.line);
    e->constant = token.number;
    std::string text;
    while (token.kind == Token::Kind::string && current().kind == Token::Kind::string) {
      text += current().text;
      next();
    }
    if (token.kind == Token::Kind::string) {
      e->constant = Value::string(std::move(text));
    } else {
      next();
    }
    return e;
  }
  if (skip_sign("(")) {
    ExpressionPtr e = is_sign(")") ? make(Kind::tuple, token.line) : tuple_or_expression(true);
    expect_sign(")");
    return e;
  }
  if (is_sign("[")) {
    return list();
  }
  if (is_sign("{")) {
    return dict();
  }
  fail("expected an expression, found " + describe_current());
  return make(Kind::constant, token.line);
}

ExpressionPtr ExpressionParser::list() {
  ExpressionPtr e = make(Kind::list, current().line);
  expect_sign("[");
  while (!failed() && !is_sign("]")) {
    add(*e, expression());
    if (!is_sign("]")) {
      expect_sign(",");
    }
  }
  expect_sign("]");
  return e;
}

ExpressionPtr ExpressionParser::dict() {
  ExpressionPtr e = make(Kind::dict, current().line);
  expect_sign("{");
  while (!failed() && !is_sign("}")) {
    add(*e, expression());
    expect_sign(":");
    add(*e, expression());
    if (!is_sign("}")) {
      expect_sign(",");
    }
  }
  expect_sign("}");
  return e;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr e) {
  while (!failed()) {
    if (is_sign(".")) {
      e = attribute(std::move(e));
    } else if (is_sign("[")) {
      e = subscript(std::move(e));
    } else if (is_sign("(")) {
      e = make(Kind::call, current().line, "", std::move(e));
      arguments(*e);
    } else {
      break;
    }
  }
  return e;
}

ExpressionPtr ExpressionParser::attribute(ExpressionPtr e) {
  const int line = current().line;
  next();
  if (current().kind == Token::Kind::number && current().number.is_integer()) {
    ExpressionPtr index = make(Kind::constant, line);
    index->constant = current().number;
    next();
    return make(Kind::subscript, line, "", std::move(e), std::move(index));
  }
  return make(Kind::attribute, line, name("an attribute"), std::move(e));
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr e) {
  const int line = current().line;
  next();
  ExpressionPtr parts[3];
  int colons = 0;
  while (!failed() && !is_sign("]")) {
    if (skip_sign(":")) {
      if (++colons > 2) {
        fail("a slice has at most three parts");
      }
      continue;
    }
    if (parts[colons] != nullptr) {
      fail("expected ']', found " + describe_current());
      break;
    }
    parts[colons] = expression();
  }
  expect_sign("]");
  if (colons == 0) {
    if (parts[0] == nullptr) {
      fail("expected an index");
    }
    return make(Kind::subscript, line, "", std::move(e), std::move(parts[0]));
  }
  ExpressionPtr slice = make(Kind::slice, line, "", std::move(e));
  for (ExpressionPtr& part : parts) {
    add(*slice, std::move(part));
  }
  return slice;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr e) {
  while (!failed()) {
    const int line = current().line;
    if (skip_sign("|")) {
      e = make(Kind::filter, line, dotted_name("a filter's name"), std::move(e));
      if (is_sign("(")) {
        arguments(*e);
      }
    } else if (is_word("is")) {
      e = test(std::move(e));
    } else if (is_sign("(")) {
      e = make(Kind::call, line, "", std::move(e));
      arguments(*e);
    } else {
      break;
    }
  }
  return e;
}

ExpressionPtr ExpressionParser::filter_chain(ExpressionPtr e) {
  do {
    e = make(Kind::filter, current().line, dotted_name("a filter's name"), std::move(e));
    if (is_sign("(")) {
      arguments(*e);
    }
  } while (!failed() && skip_sign("|"));
  return e;
}

ExpressionPtr ExpressionParser::block_text() {
  return make(Kind::name, current().line, std::string(block_text_name));
}

std::string ExpressionParser::dotted_name(const std::string& what) {
  std::string text = name(what);
  while (!failed() && skip_sign(".")) {
    text += '.';
    text += name(what);
  }
  return text;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr e) {
  const int line = current().line;
  next();
  const bool negated = skip_word("not");
  e = make(Kind::test, line, dotted_name("a test's name"), std::move(e));
  const Token& token = current();
  if (is_sign("(")) {
    arguments(*e);
  } else if (is_word("is")) {
    fail("tests can't be chained with 'is'");
  } else if (token.kind == Token::Kind::string || token.kind == Token::Kind::number ||
             is_sign("[") || is_sign("{") ||
             (token.kind == Token::Kind::name && !is_word("else") && !is_word("or") &&
              !is_word("and"))) {
    // A name that can't begin an argument ends the test, as in "x is defined if y".
    if (!is_word("if") && !is_word("in") && !is_word("not")) {
      add(*e, postfix(primary()));
    }
  }
  return negated ? make(Kind::logical_not, line, "not", std::move(e)) : std::move(e);
}

void ExpressionParser::arguments(Expression& e) {
  const Nesting nesting(*this);
  expect_sign("(");
  while (!failed() && !is_sign(")")) {
    if (is_sign("*") || is_sign("**")) {
      fail("arguments unpacked with '" + current().text + "' are not supported",
           ErrorCode::unsupported);
    }
    const bool named = current().kind == Token::Kind::name &&
                       tokens_[at_ + 1].kind == Token::Kind::sign && tokens_[at_ + 1].text == "=";
    if (named) {
      e.words.push_back(name("an argument"));
      next();
    } else if (!e.words.empty()) {
      fail("an argument without a name after one with it");
    }
    add(e, expression());
    if (!is_sign(")")) {
      expect_sign(",");
    }
  }
  expect_sign(")");
}

}  // namespace kvart::jinja
