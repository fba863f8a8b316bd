// A Jinja template engine for chat templates that knows the origin of every output byte.
//
// It renders what jinja2 3.1 renders in the environment of Hugging Face transformers' apply_chat_template,
// for the part of the language that chat templates use; anything else is an Error that names the line. Each
// output byte is marked as written by the template (its text and literals) or as content (everything that
// came in through variables); string operations keep the marks. Work and memory of a render are bounded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/jinja_ast.h"
#include "text/jinja_interpreter.h"

namespace deltatune::jinja {

/// A variable of a render. Strings in `value` count as written by the template when `trusted`.
struct Variable {
  std::string name;
  json::Value value;
  bool trusted = false;
};

struct Rendered {
  Text text;
  /// Of generation blocks, in order.
  std::vector<GenerationSpan> spans;
  /// (offset in text, index of the message being rendered or -1), in order of offset.
  std::vector<std::pair<size_t, int>> message_marks;
};

class Template {
 public:
  /// Parses a template; `where` names it in errors. Throws Error{data}: syntax, unsupported statements.
  static Template compile(std::string_view source, std::string where);

  /// Renders with `messages` (an array of objects) and other variables. The `role` of a message, when it is
  /// one of the usual words, counts as written by the template, since it is part of the header; all else in
  /// messages is content. Throws Error{data}: raise_exception (its text is what()), undefined values, limits,
  /// unsupported use.
  Rendered render(const json::Value& messages, const std::vector<Variable>& variables,
                  Limits limits = {}) const;

  bool has_generation() const { return tree_.has_generation; }
  /// Every name that an expression of the template reads, sorted: variables, and names of its own.
  std::vector<std::string> names_read() const;
  const std::string& where() const { return where_; }

 private:
  Tree tree_;
  std::string where_;
};

}  // namespace deltatune::jinja
