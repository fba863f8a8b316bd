// Parser of expressions; the statement parser (jinja_parser.cpp) builds on it. Internal to the engine.
//
// Each precedence level is one function, loosest first: conditional, or, and, not, compare, + -, ~, * / // %,
// **, unary, postfix, filters and tests. The grammar is that of the Jinja documentation.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace deltatune::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, const std::string& where)
      : tokens_(std::move(tokens)), where_(where) {}

 protected:
  /// Tokens: at_* look, take_* consume when they match, expect_* throw Error{data} when they do not.
  const Token& current() const;
  const Token& ahead() const;
  bool at(TokenType type) const;
  bool at_op(std::string_view op) const;
  bool at_name(std::string_view name) const;
  Token take();
  bool take_op(std::string_view op);
  bool take_name(std::string_view name);
  [[noreturn]] void fail(const std::string& what, const std::string& fix = "correct the template") const;
  std::string shown() const;
  void expect_op(std::string_view op);
  void expect(TokenType type, std::string_view what);
  std::string expect_name(std::string_view what);

  /// Guards the recursion of the parser.
  struct Level {
    explicit Level(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.level_ > max_tree_depth) parser_.fail("the template is nested too deeply");
    }
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ExpressionParser& parser_;
  };
  static int depth_of(const ExprPtr& e);
  static int depth_of(const ArgumentList& list);

  /// A node over `children`; throws Error{data} when the tree gets too deep.
  ExprPtr node(ExprKind kind, int line, std::vector<ExprPtr> children = {}, std::string name = {},
               ArgumentList arguments = {}) const;
  static std::vector<ExprPtr> list_of(ExprPtr a, ExprPtr b = nullptr, ExprPtr c = nullptr, size_t count = 0);
  StmtPtr statement_node(StmtKind kind) const;
  /// An expression, or a tuple without parentheses.
  ExprPtr tuple_or_expression(std::initializer_list<std::string_view> end_names, bool conditional = true,
                              bool parentheses = false);
  ExprPtr expression();
  ExprPtr or_expression();
  ExprPtr and_expression();
  ExprPtr not_expression();
  ExprPtr compare();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr constant(const Token& token) const;
  ExprPtr primary();
  ExprPtr list_literal();
  ExprPtr dict_literal();
  ExprPtr call(ExprPtr callee);
  ExprPtr postfix(ExprPtr e);
  ExprPtr subscript(ExprPtr e);
  ExprPtr index_expression();
  ArgumentList arguments();
  ExprPtr filters_and_tests(ExprPtr e);
  std::string dotted_name(std::string_view what);
  ExprPtr one_filter(ExprPtr input);
  ExprPtr filters(ExprPtr input);
  ExprPtr test(ExprPtr input);

  std::vector<Token> tokens_;
  const std::string& where_;
  size_t position_ = 0;
  int level_ = 0;
  /// Macros and call blocks around the current position: they note uses of caller, varargs and kwargs.
  std::vector<Stmt*> macros_;
};

}  // namespace deltatune::jinja
