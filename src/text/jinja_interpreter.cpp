// Statements, scopes and output of the template engine.
//
// Scopes: a loop turn, a macro, with, call, filter, generation and block set open a scope; if does not. A
// name is set in the innermost scope and looked up outwards, so a set inside a loop is not seen after it (use
// a namespace).
#include "text/jinja_interpreter.h"

#include "base/format.h"

namespace deltatune::jinja {

void Interpreter::run(const Body& body) {
  out_ = &output;
  run_body(body, inner(*root_));
}

Scope& Interpreter::inner(const Scope& scope) {
  heap_.reserve(sizeof(Scope));
  Scope& made = scopes_.emplace_back();
  made.parent = &scope;
  return made;
}

void Interpreter::assign(Scope& scope, std::string_view name, const Value& value) {
  for (auto& [known, old] : scope.names) {
    if (known == name) {
      old = value;
      return;
    }
  }
  scope.names.emplace_back(name, value);
}

void Interpreter::write(const Text& text) {
  heap_.reserve(2 * text.size());
  out_->append(text);
}

Text Interpreter::capture(const Body& body, Scope& scope) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  run_body(body, scope);
  out_ = outer;
  return text;
}

Interpreter::Flow Interpreter::run_body(const Body& body, Scope& scope) {
  const Depth guard(*this);
  for (const StmtPtr& s : body) {
    const Flow flow = run_statement(*s, scope);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::run_statement(const Stmt& s, Scope& scope) {
  heap_.line = s.line;
  heap_.charge(1);
  switch (s.kind) {
    case StmtKind::data:
      write(s.text);
      break;
    case StmtKind::output:
      for (const ExprPtr& e : s.exprs) write(string_of(eval(*e, scope)));
      break;
    case StmtKind::condition:
      return run_body(truth(eval(*s.exprs[0], scope)) ? s.body : s.otherwise, scope);
    case StmtKind::loop:
      return run_loop(s, scope);
    case StmtKind::set:
    case StmtKind::set_block:
      run_set(s, scope);
      break;
    case StmtKind::with: {
      Scope& within = inner(scope);
      for (size_t i = 0; i < s.targets.size(); ++i)
        assign_target(*s.targets[i], eval(*s.exprs[i], scope), within);
      return run_body(s.body, within);
    }
    case StmtKind::macro: {
      heap_.reserve(sizeof(Macro));
      Value value;
      value.kind = Kind::macro;
      value.macro = &macros_.emplace_back(Macro{&s, &scope});
      assign(scope, s.name, value);
      break;
    }
    case StmtKind::call_block:
      run_call_block(s, scope);
      break;
    case StmtKind::filter_block: {
      const Value body = heap_.text(capture(s.body, inner(scope)));
      write(string_of(eval_filter(*s.filter, body, scope)));
      break;
    }
    case StmtKind::generation:
      run_generation(s, scope);
      break;
    case StmtKind::loop_break:
      return Flow::broken;
    case StmtKind::loop_continue:
      return Flow::continued;
  }
  return Flow::normal;
}

// Items of `source` that pass the test of the loop, one call one item.
std::function<bool()> Interpreter::filtered(const Stmt& s, const Scope& scope, Loop& loop,
                                            std::vector<Value> source) {
  Scope& test_scope = inner(scope);
  return [this, &s, &loop, &test_scope, source = std::move(source), next = size_t{0}]() mutable {
    const int line = heap_.line;
    while (next < source.size()) {
      const Value item = source[next++];
      assign_target(*s.target, item, test_scope);
      if (!truth(eval(*s.exprs[1], test_scope))) continue;
      loop.items.push_back(item);
      heap_.line = line;
      return true;
    }
    return false;
  };
}

Interpreter::Flow Interpreter::run_loop(const Stmt& s, Scope& scope) {
  std::vector<Value> items = iterate(heap_, eval(*s.exprs[0], scope));
  Loop& loop = heap_.loop();
  if (s.exprs.size() > 1) {
    loop.more = filtered(s, scope, loop, std::move(items));
  } else {
    loop.items = std::move(items);
  }
  Value loop_value;
  loop_value.kind = Kind::loop;
  loop_value.loop = &loop;
  const int outer_message = message_;
  bool completed = false;  // jinja2 runs the else also when every turn ended in break or continue
  for (; loop.has(loop.index); ++loop.index) {
    const Value item = loop.items[loop.index];
    Scope& turn = inner(scope);
    assign(turn, "loop", loop_value);
    assign_target(*s.target, item, turn);
    if (item.is(Kind::dict) && item.dict->message >= 0) enter_message(item);
    const Flow flow = run_body(s.body, turn);
    if (flow == Flow::broken) break;
    completed |= flow == Flow::normal;
  }
  loop.more = nullptr;  // it refers to `s` and `scope`, which a kept loop variable may outlive
  if (message_ != outer_message) {
    message_ = outer_message;
    if (out_ == &output) message_marks.emplace_back(output.size(), message_);
  }
  if (!completed) return run_body(s.otherwise, inner(scope));
  return Flow::normal;
}

void Interpreter::enter_message(const Value& item) {
  message_ = item.dict->message;
  if (out_ == &output) message_marks.emplace_back(output.size(), message_);
}

void Interpreter::run_set(const Stmt& s, Scope& scope) {
  Value value;
  if (s.kind == StmtKind::set) {
    value = eval(*s.exprs[0], scope);
  } else {
    value = heap_.text(capture(s.body, inner(scope)));
    if (s.filter) value = eval_filter(*s.filter, value, scope);
  }
  assign_target(*s.target, value, scope);
}

void Interpreter::run_call_block(const Stmt& s, Scope& scope) {
  const Expr& e = *s.exprs[0];
  heap_.reserve(sizeof(Macro));
  Value caller;
  caller.kind = Kind::macro;
  caller.macro = &macros_.emplace_back(Macro{&s, &scope});
  const Value callee = eval(*e.children[0], scope);
  CallArguments arguments = eval_arguments(e.arguments, scope);
  arguments.named.emplace_back("caller", caller);
  write(string_of(call(callee, arguments)));
}

void Interpreter::run_generation(const Stmt& s, Scope& scope) {
  if (in_generation_) heap_.unsupported("a generation block inside a generation block");
  if (out_ != &output) heap_.unsupported("a generation block inside a macro, set, call or filter block");
  GenerationSpan span;
  span.begin = output.size();
  span.message = message_;
  in_generation_ = true;
  run_body(s.body, inner(scope));
  in_generation_ = false;
  span.end = output.size();
  spans.push_back(span);
}

void Interpreter::assign_target(const Expr& target, const Value& value, Scope& scope) {
  const Depth guard(*this);
  if (target.kind == ExprKind::name) return assign(scope, target.name, value);
  if (target.kind == ExprKind::space_target) {
    for (const Scope* s = &scope; s; s = s->parent) {
      for (const auto& [name, found] : s->names) {
        if (name != target.name) continue;
        if (!found.is(Kind::name_space))
          heap_.fail(format("'{}' is not a namespace: its attributes cannot be set", name));
        if (target.text.bytes[0] == '_') heap_.fail("a namespace attribute may not start with an underscore");
        heap_.reserve(sizeof(Value));
        for (auto& [attribute_name, old] : found.space->items) {
          if (attribute_name == target.text.bytes) {
            old = value;
            return;
          }
        }
        found.space->items.emplace_back(target.text.bytes, value);
        return;
      }
    }
    heap_.fail(format("'{}' is undefined: its attributes cannot be set", target.name));
  }
  const std::vector<Value> items = iterate(heap_, value);
  if (items.size() != target.children.size()) {
    heap_.fail(format("cannot unpack {} values into {} names", items.size(), target.children.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) assign_target(*target.children[i], items[i], scope);
}

}  // namespace deltatune::jinja
