// Recursive-descent parser; each precedence level is one function, loosest first: conditional, or, and, not,
// compare, + -, ~, * / // %, **, unary, postfix, filters and tests.
#include "text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "base/format.h"
#include "base/suggest.h"

namespace deltatune::jinja {
namespace {

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& where) : tokens_(std::move(tokens)), where_(where) {}

  Tree run() {
    Tree tree;
    tree.body = body({});
    if (!at(TokenType::end)) fail(format("unexpected tag '{}'", current().text));
    tree.has_generation = has_generation_;
    return tree;
  }

 private:
  // --- tokens ---
  const Token& current() const { return tokens_[position_]; }
  const Token& ahead() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  bool at(TokenType type) const { return current().type == type; }
  bool at_op(std::string_view op) const { return at(TokenType::op) && current().text == op; }
  bool at_name(std::string_view name) const { return at(TokenType::name) && current().text == name; }
  Token take() {
    Token token = tokens_[position_];
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
  }
  bool take_op(std::string_view op) { return at_op(op) ? (take(), true) : false; }
  bool take_name(std::string_view name) { return at_name(name) ? (take(), true) : false; }

  [[noreturn]] void fail(const std::string& what, const std::string& fix = "correct the template") const {
    throw Error(ErrorKind::data, what, format("{}, line {}", where_, current().line), fix);
  }
  std::string shown() const {
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
  void expect_op(std::string_view op) {
    if (!take_op(op)) fail(format("expected '{}', found {}", op, shown()));
  }
  void expect(TokenType type, std::string_view what) {
    if (!at(type)) fail(format("expected {}, found {}", what, shown()));
    take();
  }
  std::string expect_name(std::string_view what) {
    if (!at(TokenType::name)) fail(format("expected {}, found {}", what, shown()));
    return take().text;
  }

  // --- nodes ---
  struct Level {
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.level_ > max_tree_depth) parser_.fail("the template is nested too deeply");
    }
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Parser& parser_;
  };

  static int depth_of(const ExprPtr& e) { return e ? e->depth : 0; }

  static int depth_of(const ArgumentList& list) {
    int depth = std::max(depth_of(list.star), depth_of(list.double_star));
    for (const ExprPtr& e : list.positional) depth = std::max(depth, e->depth);
    for (const auto& item : list.named) depth = std::max(depth, item.second->depth);
    return depth;
  }

  ExprPtr node(ExprKind kind, int line, std::vector<ExprPtr> children = {}, std::string name = {},
               ArgumentList arguments = {}) const {
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

  static std::vector<ExprPtr> list_of(ExprPtr a, ExprPtr b = nullptr, ExprPtr c = nullptr, size_t count = 0) {
    std::vector<ExprPtr> list;
    const size_t n = count ? count : c ? 3 : b ? 2 : 1;
    list.push_back(std::move(a));
    if (n > 1) list.push_back(std::move(b));
    if (n > 2) list.push_back(std::move(c));
    return list;
  }

  StmtPtr statement_node(StmtKind kind) const {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = current().line;
    return s;
  }

  // --- statements ---

  /// Statements until one of the tags in `ends` (not consumed) or the end of the template.
  Body body(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Body statements;
    while (!at(TokenType::end)) {
      if (at(TokenType::data)) {
        StmtPtr s = statement_node(StmtKind::data);
        s->text = Text(take().text, from_template);
        statements.push_back(std::move(s));
      } else if (at(TokenType::variable_begin)) {
        StmtPtr s = statement_node(StmtKind::output);
        take();
        s->exprs.push_back(tuple_or_expression({}));
        expect(TokenType::variable_end, "'}}'");
        statements.push_back(std::move(s));
      } else {
        take();  // block_begin
        if (!at(TokenType::name)) fail("expected a statement name");
        if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) return statements;
        statements.push_back(statement());
        expect(TokenType::block_end, "'%}'");
      }
    }
    return statements;
  }

  /// "%}", statements, and the end tag, which must be one of `ends`; its name is consumed and returned.
  std::string block(Body& to, std::initializer_list<std::string_view> ends) {
    take_op(":");
    expect(TokenType::block_end, "'%}'");
    to = body(ends);
    if (at(TokenType::end)) fail(format("the template ends, but '{}' is missing", *(ends.end() - 1)));
    return take().text;
  }

  StmtPtr statement() {
    static const std::vector<std::string> known = {
        "if", "for", "set", "macro", "call", "filter", "with", "print", "generation", "break", "continue"};
    const std::string& name = current().text;
    if (name == "if") return if_statement();
    if (name == "for") return for_statement();
    if (name == "set") return set_statement();
    if (name == "macro") return macro_statement();
    if (name == "call") return call_statement();
    if (name == "filter") return filter_statement();
    if (name == "with") return with_statement();
    if (name == "print") return print_statement();
    if (name == "generation") return generation_statement();
    if (name == "break" || name == "continue") {
      StmtPtr s = statement_node(name == "break" ? StmtKind::loop_break : StmtKind::loop_continue);
      if (loops_ == 0) fail(format("'{}' outside a loop", name));
      take();
      return s;
    }
    const std::string near = nearest(name, known);
    fail(format("unknown or unsupported statement '{}'", name),
         near.empty() ? "use if, for, set, macro, call, filter, with, print, generation, break or continue"
                      : format("did you mean '{}'?", near));
  }

  StmtPtr if_statement() {
    const Level level(*this);  // an elif chain nests
    StmtPtr s = statement_node(StmtKind::condition);
    take();
    s->exprs.push_back(tuple_or_expression({}, false));
    const std::string end = block(s->body, {"elif", "else", "endif"});
    if (end == "elif") {
      --position_;  // parse the elif as an if of its own, which also takes the endif
      s->otherwise.push_back(if_statement());
    } else if (end == "else") {
      block(s->otherwise, {"endif"});
    }
    return s;
  }

  StmtPtr for_statement() {
    StmtPtr s = statement_node(StmtKind::loop);
    take();
    s->target = target(false);
    if (!take_name("in")) fail(format("expected 'in', found {}", shown()));
    s->exprs.push_back(tuple_or_expression({"recursive"}, false));
    if (take_name("if")) s->exprs.push_back(expression());
    if (at_name("recursive")) fail("recursive loops are not supported", "rewrite the loop as a macro");
    ++loops_;
    const std::string end = block(s->body, {"else", "endfor"});
    --loops_;
    if (end == "else") block(s->otherwise, {"endfor"});
    return s;
  }

  /// A body that runs into a text of its own: break and continue cannot leave it.
  void closed_block(Body& to, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    block(to, {end});
    loops_ = loops;
  }

  StmtPtr set_statement() {
    StmtPtr s = statement_node(StmtKind::set);
    take();
    s->target = target(true);
    if (take_op("=")) {
      s->exprs.push_back(tuple_or_expression({}));
      return s;
    }
    s->kind = StmtKind::set_block;
    s->filter = filters(nullptr);
    closed_block(s->body, "endset");
    return s;
  }

  void signature(Stmt& s) {
    expect_op("(");
    while (!at_op(")")) {
      if (!s.parameters.empty()) expect_op(",");
      Parameter parameter;
      parameter.name = expect_name("a parameter name");
      if (take_op("=")) {
        parameter.default_value = expression();
      } else if (!s.parameters.empty() && s.parameters.back().default_value) {
        fail("a parameter without default follows one with a default");
      }
      s.parameters.push_back(std::move(parameter));
    }
    take();
  }

  /// The body of a macro or call block; notes which special names it uses.
  void macro_body(Stmt& s, std::string_view end) {
    macros_.push_back(&s);
    closed_block(s.body, end);
    macros_.pop_back();
  }

  StmtPtr macro_statement() {
    StmtPtr s = statement_node(StmtKind::macro);
    take();
    s->name = expect_name("the macro's name");
    signature(*s);
    macro_body(*s, "endmacro");
    return s;
  }

  StmtPtr call_statement() {
    StmtPtr s = statement_node(StmtKind::call_block);
    take();
    if (at_op("(")) signature(*s);
    s->exprs.push_back(expression());
    if (s->exprs[0]->kind != ExprKind::call) fail("'call' needs a macro call");
    macro_body(*s, "endcall");
    return s;
  }

  StmtPtr filter_statement() {
    StmtPtr s = statement_node(StmtKind::filter_block);
    take();
    s->filter = filters(one_filter(nullptr));
    closed_block(s->body, "endfilter");
    return s;
  }

  StmtPtr with_statement() {
    StmtPtr s = statement_node(StmtKind::with);
    take();
    while (!at(TokenType::block_end)) {
      if (!s->targets.empty()) expect_op(",");
      s->targets.push_back(target(false));
      expect_op("=");
      s->exprs.push_back(expression());
    }
    block(s->body, {"endwith"});
    return s;
  }

  StmtPtr print_statement() {
    StmtPtr s = statement_node(StmtKind::output);
    take();
    while (!at(TokenType::block_end)) {
      if (!s->exprs.empty()) expect_op(",");
      s->exprs.push_back(expression());
    }
    return s;
  }

  StmtPtr generation_statement() {
    StmtPtr s = statement_node(StmtKind::generation);
    take();
    has_generation_ = true;
    closed_block(s->body, "endgeneration");
    return s;
  }

  ExprPtr target_part(bool spaces) {
    const int line = current().line;
    if (take_op("(")) {
      ExprPtr inner = target(spaces);
      expect_op(")");
      return inner;
    }
    const std::string name = expect_name("a name to assign to");
    static constexpr std::string_view constants[] = {"true", "false", "none", "True", "False", "None"};
    if (std::find(std::begin(constants), std::end(constants), name) != std::end(constants)) {
      fail(format("cannot assign to '{}'", name));
    }
    if (name == "loop") fail("cannot assign to 'loop'");
    if (spaces && take_op(".")) {
      ExprPtr e = node(ExprKind::space_target, line, {}, name);
      e->text = Text(expect_name("an attribute name"), from_template);
      return e;
    }
    return node(ExprKind::name, line, {}, name);
  }

  /// A name, a namespace attribute (when `spaces`), or a tuple of those.
  ExprPtr target(bool spaces) {
    const Level level(*this);
    const int line = current().line;
    std::vector<ExprPtr> parts;
    bool is_tuple = false;
    while (true) {
      if (!parts.empty() && (at_name("in") || at_op("=") || at_op(")") || at(TokenType::block_end))) break;
      parts.push_back(target_part(spaces));
      if (!take_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) return std::move(parts[0]);
    return node(ExprKind::tuple, line, std::move(parts));
  }

  // --- expressions ---

  /// An expression, or a tuple without parentheses.
  ExprPtr tuple_or_expression(std::initializer_list<std::string_view> end_names, bool conditional = true,
                              bool parentheses = false) {
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

  ExprPtr expression() {
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

  ExprPtr or_expression() {
    ExprPtr left = and_expression();
    while (at_name("or")) {
      const int line = take().line;
      left = node(ExprKind::binary, line, list_of(std::move(left), and_expression()), "or");
    }
    return left;
  }

  ExprPtr and_expression() {
    ExprPtr left = not_expression();
    while (at_name("and")) {
      const int line = take().line;
      left = node(ExprKind::binary, line, list_of(std::move(left), not_expression()), "and");
    }
    return left;
  }

  ExprPtr not_expression() {
    if (!at_name("not")) return compare();
    const Level level(*this);
    const int line = take().line;
    return node(ExprKind::unary, line, list_of(not_expression()), "not");
  }

  ExprPtr compare() {
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

  ExprPtr sum() {
    ExprPtr left = concat();
    while (at_op("+") || at_op("-")) {
      const Token op = take();
      left = node(ExprKind::binary, op.line, list_of(std::move(left), concat()), op.text);
    }
    return left;
  }

  ExprPtr concat() {
    const int line = current().line;
    std::vector<ExprPtr> parts;
    parts.push_back(product());
    while (take_op("~")) parts.push_back(product());
    if (parts.size() == 1) return std::move(parts[0]);
    return node(ExprKind::concat, line, std::move(parts));
  }

  ExprPtr product() {
    ExprPtr left = power();
    while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
      const Token op = take();
      left = node(ExprKind::binary, op.line, list_of(std::move(left), power()), op.text);
    }
    return left;
  }

  ExprPtr power() {
    ExprPtr left = unary(true);
    while (at_op("**")) {
      const int line = take().line;
      left = node(ExprKind::binary, line, list_of(std::move(left), unary(true)), "**");
    }
    return left;
  }

  ExprPtr unary(bool with_filters) {
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

  ExprPtr constant(const Token& token) const {
    ExprPtr e = node(ExprKind::boolean, token.line);
    e->boolean = token.text == "true" || token.text == "True";
    if (token.text == "none" || token.text == "None") e->kind = ExprKind::none;
    return e;
  }

  ExprPtr primary() {
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

  ExprPtr list_literal() {
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

  ExprPtr dict_literal() {
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

  ExprPtr call(ExprPtr callee) {
    const int line = current().line;
    ArgumentList list = arguments();
    return node(ExprKind::call, line, list_of(std::move(callee)), {}, std::move(list));
  }

  ExprPtr postfix(ExprPtr e) {
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

  ExprPtr subscript(ExprPtr e) {
    const Token token = take();
    if (token.text == ".") {
      if (at(TokenType::name))
        return node(ExprKind::attribute, token.line, list_of(std::move(e)), take().text);
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

  ExprPtr index_expression() {
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

  ArgumentList arguments() {
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

  ExprPtr filters_and_tests(ExprPtr e) {
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

  std::string dotted_name(std::string_view what) {
    std::string name = expect_name(what);
    while (take_op(".")) name += "." + expect_name("a name");
    return name;
  }

  ExprPtr one_filter(ExprPtr input) {
    const int line = current().line;
    std::string name = dotted_name("a filter name");
    ArgumentList list;
    if (at_op("(")) list = arguments();
    return node(ExprKind::filter, line, list_of(std::move(input)), std::move(name), std::move(list));
  }

  ExprPtr filters(ExprPtr input) {
    while (take_op("|")) input = one_filter(std::move(input));
    return input;
  }

  ExprPtr test(ExprPtr input) {
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

  std::vector<Token> tokens_;
  const std::string& where_;
  size_t position_ = 0;
  int level_ = 0;
  int loops_ = 0;
  std::vector<Stmt*> macros_;
  bool has_generation_ = false;
};

}  // namespace

Tree parse(std::vector<Token> tokens, const std::string& where) {
  return Parser(std::move(tokens), where).run();
}

}  // namespace deltatune::jinja
