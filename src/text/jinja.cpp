// The engine's front door: compile, and set up the heap and scope of one render.
#include "text/jinja.h"

#include <algorithm>
#include <set>

#include "text/jinja_parser.h"

namespace deltatune::jinja {
namespace {

/// A message as a value; see Template::render for the role.
Value message_value(Heap& heap, const json::Value& message, int index) {
  static constexpr std::string_view roles[] = {"system",   "developer", "user",    "assistant",  "tool",
                                               "function", "model",     "ipython", "observation"};
  if (!message.is_object()) return heap.from_json(message, from_content);
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, value] : message.as_object()) {
    const bool known_role =
        key == "role" && value.is_string() &&
        std::find(std::begin(roles), std::end(roles), value.as_string()) != std::end(roles);
    const Value name = heap.text(key, from_content);
    items.emplace_back(name, heap.from_json(value, known_role ? from_template : from_content));
  }
  return heap.dict(std::move(items), index);
}

// Names in expressions: what a template could ask of a variable. Targets of set, for and with are no reads.
void collect_names(const Expr* e, std::set<std::string>& names);

void collect_names(const ArgumentList& list, std::set<std::string>& names) {
  for (const ExprPtr& e : list.positional) collect_names(e.get(), names);
  for (const auto& [name, e] : list.named) collect_names(e.get(), names);
  collect_names(list.star.get(), names);
  collect_names(list.double_star.get(), names);
}

void collect_names(const Expr* e, std::set<std::string>& names) {
  if (e == nullptr) return;
  if (e->kind == ExprKind::name) names.insert(e->name);
  for (const ExprPtr& child : e->children) collect_names(child.get(), names);
  collect_names(e->arguments, names);
}

void collect_names(const Body& body, std::set<std::string>& names) {
  for (const StmtPtr& s : body) {
    for (const ExprPtr& e : s->exprs) collect_names(e.get(), names);
    collect_names(s->filter.get(), names);
    for (const Parameter& p : s->parameters) collect_names(p.default_value.get(), names);
    collect_names(s->body, names);
    collect_names(s->otherwise, names);
  }
}

}  // namespace

Template Template::compile(std::string_view source, std::string where) {
  Template made;
  made.where_ = std::move(where);
  made.tree_ = parse(tokenize(source, made.where_), made.where_);
  return made;
}

std::vector<std::string> Template::names_read() const {
  std::set<std::string> names;
  collect_names(tree_.body, names);
  return {names.begin(), names.end()};
}

Rendered Template::render(const json::Value& messages, const std::vector<Variable>& variables,
                          Limits limits) const {
  Heap heap(limits, where_);
  Interpreter interpreter(heap);
  for (const Variable& v : variables) {
    interpreter.define(v.name, heap.from_json(v.value, v.trusted ? from_template : from_content));
  }
  if (messages.is_array()) {
    std::vector<Value> items;
    for (const json::Value& message : messages.as_array()) {
      items.push_back(message_value(heap, message, static_cast<int>(items.size())));
    }
    interpreter.define("messages", heap.list(std::move(items)));
  } else {
    interpreter.define("messages", heap.from_json(messages, from_content));
  }
  interpreter.run(tree_.body);
  return {std::move(interpreter.output), std::move(interpreter.spans), std::move(interpreter.message_marks)};
}

}  // namespace deltatune::jinja
