// Parser of statements: a template is text, {{ expressions }} and the statements of this file.
#include "text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "base/format.h"
#include "base/suggest.h"
#include "text/jinja_expression_parser.h"

namespace deltatune::jinja {
namespace {

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Tree run() {
    Tree tree;
    tree.body = body({});
    if (!at(TokenType::end)) fail(format("unexpected tag '{}'", current().text));
    tree.has_generation = has_generation_;
    return tree;
  }

 private:
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

  int loops_ = 0;
  bool has_generation_ = false;
};

}  // namespace

Tree parse(std::vector<Token> tokens, const std::string& where) {
  return Parser(std::move(tokens), where).run();
}

}  // namespace deltatune::jinja
