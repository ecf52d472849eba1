// The parser of expressions, which the parser of statements extends. Its first error sticks and
// ends the tokens.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/jinja_lexer.h"
#include "model/text/jinja_parser.h"

namespace kvart::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Counts what is nested while it lives; too much is an error.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  bool failed() const { return error_.has_value(); }
  const Error& error() const { return *error_; }
  void fail(const std::string& what, ErrorCode code = ErrorCode::invalid_file);

  const Token& current() const { return tokens_[at_]; }
  void next() { at_ += at_ + 1 < tokens_.size() ? 1 : 0; }
  bool is_word(std::string_view word) const;
  bool is_sign(std::string_view sign) const;
  bool skip_word(std::string_view word);
  bool skip_sign(std::string_view sign);
  void expect(Token::Kind kind, const std::string& what);
  void expect_sign(std::string_view sign);
  std::string name(const std::string& what);
  static bool is_reserved(std::string_view name);

  // An expression, or a tuple of them when commas follow; without `conditional` no "x if y".
  ExpressionPtr tuple_or_expression(bool conditional);
  ExpressionPtr expression();
  // "name(arguments) | name ..." on `e`.
  ExpressionPtr filter_chain(ExpressionPtr e);
  ExpressionPtr block_text();  // what a block has written

  // Of each macro around what is parsed, the outermost first: which of names_in_macros its body
  // has read so far, and which it has set before it read it, so that they are names like others.
  struct MacroBody {
    std::array<bool, names_in_macros.size()> reads = {};
    std::array<bool, names_in_macros.size()> sets = {};
  };
  void note_read(std::string_view name);
  void note_set(std::string_view name);

  std::vector<MacroBody> macros_;

  std::string describe_current() const;

 private:
  using Kind = Expression::Kind;

  ExpressionPtr make(Kind kind, int line, std::string text = "");
  ExpressionPtr make(Kind kind, int line, std::string text, ExpressionPtr a,
                     ExpressionPtr b = nullptr, ExpressionPtr c = nullptr);
  void add(Expression& e, ExpressionPtr operand);

  ExpressionPtr logical_or();
  ExpressionPtr logical_and();
  ExpressionPtr logical_not();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr e);
  ExpressionPtr filters(ExpressionPtr e);
  ExpressionPtr attribute(ExpressionPtr e);
  ExpressionPtr subscript(ExpressionPtr e);
  ExpressionPtr test(ExpressionPtr e);
  ExpressionPtr list();
  ExpressionPtr dict();
  std::string dotted_name(const std::string& what);
  void arguments(Expression& e);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  std::optional<Error> error_;
};

}  // namespace kvart::jinja
