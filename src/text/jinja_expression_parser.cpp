// Recursive-descent parser of expressions; see jinja_expression_parser.h.
#include "text/jinja_expression_parser.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"

namespace deltatune::jinja {

const Token& ExpressionParser::current() const {
  return tokens_[position_];
}

const Token& ExpressionParser::ahead() const {
  return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
}

bool ExpressionParser::at(TokenType type) const {
  return current().type == type;
}

bool ExpressionParser::at_op(std::string_view op) const {
  return at(TokenType::op) && current().text == op;
}

bool ExpressionParser::at_name(std::string_view name) const {
  return at(TokenType::name) && current().text == name;
}

Token ExpressionParser::take() {
  Token token = tokens_[position_];
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool ExpressionParser::take_op(std::string_view op) {
  return at_op(op) ? (take(), true) : false;
}

bool ExpressionParser::take_name(std::string_view name) {
  return at_name(name) ? (take(), true) : false;
}

void ExpressionParser::fail(const std::string& what, const std::string& fix) const {
  throw Error(ErrorKind::data, what, format("{}, line {}", where_, current().line), fix);
}

std::string ExpressionParser::shown() const {
  switch (current().type) {
    case TokenType::end:
      return "the end of the template";
    case TokenType::data:
      return "text";
    case TokenType::variable_end:
      return "'}}'";
    case TokenType::block_end:
      return "'%}'";
    case TokenType::string:
      return "a string";
    default:
      return format("'{}'", current().text);
  }
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!take_op(op)) fail(format("expected '{}', found {}", op, shown()));
}

void ExpressionParser::expect(TokenType type, std::string_view what) {
  if (!at(type)) fail(format("expected {}, found {}", what, shown()));
  take();
}

std::string ExpressionParser::expect_name(std::string_view what) {
  if (!at(TokenType::name)) fail(format("expected {}, found {}", what, shown()));
  return take().text;
}

int ExpressionParser::depth_of(const ExprPtr& e) {
  return e ? e->depth : 0;
}

int ExpressionParser::depth_of(const ArgumentList& list) {
  int depth = std::max(depth_of(list.star), depth_of(list.double_star));
  for (const ExprPtr& e : list.positional) depth = std::max(depth, e->depth);
  for (const auto& item : list.named) depth = std::max(depth, item.second->depth);
  return depth;
}

ExprPtr ExpressionParser::node(ExprKind kind, int line, std::vector<ExprPtr> children, std::string name,
                               ArgumentList arguments) const {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = line;
  e->name = std::move(name);
  e->depth = depth_of(arguments) + 1;
  for (const ExprPtr& child : children) e->depth = std::max(e->depth, depth_of(child) + 1);
  e->children = std::move(children);
  e->arguments = std::move(arguments);
  if (e->depth > max_tree_depth) fail("the expression is too long or nested too deeply");
  return e;
}

std::vector<ExprPtr> ExpressionParser::list_of(ExprPtr a, ExprPtr b, ExprPtr c, size_t count) {
  std::vector<ExprPtr> list;
  const size_t n = count ? count : c ? 3 : b ? 2 : 1;
  list.push_back(std::move(a));
  if (n > 1) list.push_back(std::move(b));
  if (n > 2) list.push_back(std::move(c));
  return list;
}

StmtPtr ExpressionParser::statement_node(StmtKind kind) const {
  auto s = std::make_unique<Stmt>();
  s->kind = kind;
  s->line = current().line;
  return s;
}

ExprPtr ExpressionParser::tuple_or_expression(std::initializer_list<std::string_view> end_names,
                                              bool conditional, bool parentheses) {
  const Level level(*this);
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    const bool named_end = at(TokenType::name) &&
                           std::find(end_names.begin(), end_names.end(), current().text) != end_names.end();
    if (at(TokenType::variable_end) || at(TokenType::block_end) || at_op(")") || named_end) break;
    items.push_back(conditional ? expression() : or_expression());
    if (!take_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !parentheses) fail(format("expected an expression, found {}", shown()));
  return node(ExprKind::tuple, line, std::move(items));
}

ExprPtr ExpressionParser::expression() {
  const Level level(*this);
  const int line = current().line;
  ExprPtr value = or_expression();
  while (take_name("if")) {
    ExprPtr condition = or_expression();
    ExprPtr otherwise = take_name("else") ? expression() : nullptr;
    value = node(ExprKind::conditional, line,
                 list_of(std::move(condition), std::move(value), std::move(otherwise), 3));
  }
  return value;
}

ExprPtr ExpressionParser::or_expression() {
  ExprPtr left = and_expression();
  while (at_name("or")) {
    const int line = take().line;
    left = node(ExprKind::binary, line, list_of(std::move(left), and_expression()), "or");
  }
  return left;
}

ExprPtr ExpressionParser::and_expression() {
  ExprPtr left = not_expression();
  while (at_name("and")) {
    const int line = take().line;
    left = node(ExprKind::binary, line, list_of(std::move(left), not_expression()), "and");
  }
  return left;
}

ExprPtr ExpressionParser::not_expression() {
  if (!at_name("not")) return compare();
  const Level level(*this);
  const int line = take().line;
  return node(ExprKind::unary, line, list_of(not_expression()), "not");
}

ExprPtr ExpressionParser::compare() {
  const int line = current().line;
  std::vector<ExprPtr> operands;
  std::vector<std::string> ops;
  operands.push_back(sum());
  while (true) {
    static constexpr std::string_view known[] = {"==", "!=", "<", "<=", ">", ">="};
    if (at(TokenType::op) &&
        std::find(std::begin(known), std::end(known), current().text) != std::end(known)) {
      ops.push_back(take().text);
    } else if (take_name("in")) {
      ops.emplace_back("in");
    } else if (at_name("not") && ahead().type == TokenType::name && ahead().text == "in") {
      take();
      take();
      ops.emplace_back("not in");
    } else {
      break;
    }
    operands.push_back(sum());
  }
  if (ops.empty()) return std::move(operands[0]);
  ExprPtr e = node(ExprKind::compare, line, std::move(operands));
  e->ops = std::move(ops);
  return e;
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concat();
  while (at_op("+") || at_op("-")) {
    const Token op = take();
    left = node(ExprKind::binary, op.line, list_of(std::move(left), concat()), op.text);
  }
  return left;
}

ExprPtr ExpressionParser::concat() {
  const int line = current().line;
  std::vector<ExprPtr> parts;
  parts.push_back(product());
  while (take_op("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts[0]);
  return node(ExprKind::concat, line, std::move(parts));
}

ExprPtr ExpressionParser::product() {
  ExprPtr left = power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const Token op = take();
    left = node(ExprKind::binary, op.line, list_of(std::move(left), power()), op.text);
  }
  return left;
}

ExprPtr ExpressionParser::power() {
  ExprPtr left = unary(true);
  while (at_op("**")) {
    const int line = take().line;
    left = node(ExprKind::binary, line, list_of(std::move(left), unary(true)), "**");
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const Level level(*this);
  ExprPtr e;
  if (at_op("-") || at_op("+")) {
    const Token op = take();
    e = node(ExprKind::unary, op.line, list_of(unary(false)), op.text);
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filters ? filters_and_tests(std::move(e)) : std::move(e);
}

ExprPtr ExpressionParser::constant(const Token& token) const {
  ExprPtr e = node(ExprKind::boolean, token.line);
  e->boolean = token.text == "true" || token.text == "True";
  if (token.text == "none" || token.text == "None") e->kind = ExprKind::none;
  return e;
}

ExprPtr ExpressionParser::primary() {
  const int line = current().line;
  if (at(TokenType::name)) {
    static constexpr std::string_view constants[] = {"true", "false", "True", "False", "none", "None"};
    const Token token = take();
    if (std::find(std::begin(constants), std::end(constants), token.text) != std::end(constants)) {
      return constant(token);
    }
    for (Stmt* macro : macros_) {
      macro->uses_caller |= token.text == "caller";
      macro->uses_varargs |= token.text == "varargs";
      macro->uses_kwargs |= token.text == "kwargs";
    }
    return node(ExprKind::name, line, {}, token.text);
  }
  if (at(TokenType::string)) {
    std::string text;
    while (at(TokenType::string)) text += take().text;
    ExprPtr e = node(ExprKind::string, line);
    e->text = Text(text, from_template);
    return e;
  }
  if (at(TokenType::integer) || at(TokenType::floating)) {
    ExprPtr e = node(at(TokenType::integer) ? ExprKind::integer : ExprKind::floating, line);
    const Token token = take();
    e->integer = token.integer;
    e->floating = token.floating;
    return e;
  }
  if (take_op("(")) {
    ExprPtr e = tuple_or_expression({}, true, true);
    expect_op(")");
    return e;
  }
  if (at_op("[")) return list_literal();
  if (at_op("{")) return dict_literal();
  fail(format("expected an expression, found {}", shown()));
}

ExprPtr ExpressionParser::list_literal() {
  const int line = take().line;
  std::vector<ExprPtr> items;
  while (!at_op("]")) {
    if (!items.empty()) expect_op(",");
    if (at_op("]")) break;
    items.push_back(expression());
  }
  take();
  return node(ExprKind::list, line, std::move(items));
}

ExprPtr ExpressionParser::dict_literal() {
  const int line = take().line;
  std::vector<ExprPtr> items;
  while (!at_op("}")) {
    if (!items.empty()) expect_op(",");
    if (at_op("}")) break;
    items.push_back(expression());
    expect_op(":");
    items.push_back(expression());
  }
  take();
  return node(ExprKind::dict, line, std::move(items));
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
  const int line = current().line;
  ArgumentList list = arguments();
  return node(ExprKind::call, line, list_of(std::move(callee)), {}, std::move(list));
}

ExprPtr ExpressionParser::postfix(ExprPtr e) {
  while (true) {
    if (at_op(".") || at_op("[")) {
      e = subscript(std::move(e));
    } else if (at_op("(")) {
      e = call(std::move(e));
    } else {
      return e;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr e) {
  const Token token = take();
  if (token.text == ".") {
    if (at(TokenType::name)) return node(ExprKind::attribute, token.line, list_of(std::move(e)), take().text);
    if (!at(TokenType::integer)) fail(format("expected a name or number behind '.', found {}", shown()));
    ExprPtr index = node(ExprKind::integer, token.line);
    index->integer = take().integer;
    return node(ExprKind::item, token.line, list_of(std::move(e), std::move(index)));
  }
  std::vector<ExprPtr> indices;
  while (!at_op("]")) {
    if (!indices.empty()) expect_op(",");
    indices.push_back(index_expression());
  }
  take();
  ExprPtr index =
      indices.size() == 1 ? std::move(indices[0]) : node(ExprKind::tuple, token.line, std::move(indices));
  return node(ExprKind::item, token.line, list_of(std::move(e), std::move(index)));
}

ExprPtr ExpressionParser::index_expression() {
  const int line = current().line;
  const auto at_end = [&] { return at_op(":") || at_op("]") || at_op(","); };
  ExprPtr begin = at_op(":") ? nullptr : expression();
  if (!at_op(":")) return begin;
  take();
  ExprPtr end = at_end() ? nullptr : expression();
  ExprPtr step;
  if (take_op(":") && !at_end()) step = expression();
  return node(ExprKind::slice, line, list_of(std::move(begin), std::move(end), std::move(step), 3));
}

ArgumentList ExpressionParser::arguments() {
  ArgumentList list;
  expect_op("(");
  bool first = true;
  while (!at_op(")")) {
    if (!first) expect_op(",");
    if (at_op(")")) break;
    first = false;
    const auto check = [&](bool good) {
      if (!good) fail("arguments are out of order: positional, named, *list, **dict");
    };
    if (take_op("*")) {
      check(!list.star && !list.double_star);
      list.star = expression();
    } else if (take_op("**")) {
      check(!list.double_star);
      list.double_star = expression();
    } else if (at(TokenType::name) && ahead().type == TokenType::op && ahead().text == "=") {
      check(!list.double_star);
      const std::string name = take().text;
      take();
      const auto same = [&](const auto& item) { return item.first == name; };
      if (std::any_of(list.named.begin(), list.named.end(), same))
        fail(format("argument '{}' is given twice", name));
      list.named.emplace_back(name, expression());
    } else {
      check(!list.star && !list.double_star && list.named.empty());
      list.positional.push_back(expression());
    }
  }
  take();
  return list;
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr e) {
  while (true) {
    if (at_op("|")) {
      e = filters(std::move(e));
    } else if (at_name("is")) {
      e = test(std::move(e));
    } else if (at_op("(")) {
      e = call(std::move(e));
    } else {
      return e;
    }
  }
}

std::string ExpressionParser::dotted_name(std::string_view what) {
  std::string name = expect_name(what);
  while (take_op(".")) name += "." + expect_name("a name");
  return name;
}

ExprPtr ExpressionParser::one_filter(ExprPtr input) {
  const int line = current().line;
  std::string name = dotted_name("a filter name");
  ArgumentList list;
  if (at_op("(")) list = arguments();
  return node(ExprKind::filter, line, list_of(std::move(input)), std::move(name), std::move(list));
}

ExprPtr ExpressionParser::filters(ExprPtr input) {
  while (take_op("|")) input = one_filter(std::move(input));
  return input;
}

ExprPtr ExpressionParser::test(ExprPtr input) {
  const int line = take().line;
  const bool negated = take_name("not");
  std::string name = dotted_name("a test name");
  ArgumentList list;
  const bool starts_value = at(TokenType::name) || at(TokenType::string) || at(TokenType::integer) ||
                            at(TokenType::floating) || at_op("[") || at_op("{");
  if (at_op("(")) {
    list = arguments();
  } else if (starts_value && !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) fail("tests cannot be chained with 'is'");
    list.positional.push_back(postfix(primary()));
  }
  ExprPtr e = node(ExprKind::test, line, list_of(std::move(input)), std::move(name), std::move(list));
  return negated ? node(ExprKind::unary, line, list_of(std::move(e)), "not") : std::move(e);
}

}  // namespace deltatune::jinja
