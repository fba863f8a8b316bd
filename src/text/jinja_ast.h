// Syntax tree of a template: two node types, told apart by a kind, so that parser and interpreter stay small.
//
// Every node knows its line and its depth; the parser refuses trees deeper than max_tree_depth, which bounds
// the recursion of everything that walks a tree (its destructor included).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/jinja_text.h"

namespace deltatune::jinja {

inline constexpr int max_tree_depth = 200;

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

/// Call arguments of a call, filter or test.
struct ArgumentList {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;         ///< *expression
  ExprPtr double_star;  ///< **expression
};

enum class ExprKind {
  string,
  integer,
  floating,
  boolean,
  none,  // literals
  name,
  list,
  tuple,
  dict,         // dict: children are key, value, key, value ...
  attribute,    // children[0] . name
  item,         // children[0] [ children[1] ]
  slice,        // children: begin, end, step (null: absent); only as index of an item
  call,         // children[0] ( arguments )
  filter,       // children[0] | name ( arguments ); children[0] null in filter and set blocks
  test,         // children[0] is name ( arguments )
  unary,        // op: + - not
  binary,       // op: + - * / // % ** and or
  compare,      // children[0] ops[0] children[1] ops[1] ...
  concat,       // children joined by ~
  conditional,  // children: condition, value, otherwise (may be null)
  space_target  // name . text on the left of a set: a namespace attribute
};

struct Expr {
  ExprKind kind = ExprKind::none;
  int line = 0;
  int depth = 1;
  std::string name;  ///< name, attribute, filter, test, operator
  Text text;         ///< string literal
  int64_t integer = 0;
  double floating = 0;
  bool boolean = false;
  std::vector<ExprPtr> children;
  std::vector<std::string> ops;
  ArgumentList arguments;
};

enum class StmtKind {
  data,          // text
  output,        // exprs
  condition,     // if: exprs[0], body, otherwise (an elif is an `if` in otherwise)
  loop,          // for: target in exprs[0] (if exprs[1]), body, otherwise
  set,           // target = exprs[0]
  set_block,     // target, filter, body
  with,          // targets[i] = exprs[i], body
  macro,         // name, parameters, body
  call_block,    // exprs[0] is a call, parameters, body
  filter_block,  // filter, body
  generation,    // body
  loop_break,
  loop_continue
};

struct Parameter {
  std::string name;
  ExprPtr default_value;
};

struct Stmt {
  StmtKind kind = StmtKind::data;
  int line = 0;
  int depth = 1;
  Text text;
  std::string name;
  ExprPtr target;
  std::vector<ExprPtr> targets;
  std::vector<ExprPtr> exprs;
  ExprPtr filter;
  std::vector<Parameter> parameters;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;  ///< of a macro or call block
  Body body, otherwise;
};

struct Tree {
  Body body;
  bool has_generation = false;
};

}  // namespace deltatune::jinja
