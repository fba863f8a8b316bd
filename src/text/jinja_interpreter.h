// Runs a syntax tree over the values of one heap. Internal to the engine: users see jinja.h.
//
// The parts of the class are spread over files by subject: jinja_interpreter.cpp (statements and scopes),
// jinja_eval.cpp (expressions), jinja_call.cpp (macros and global functions), jinja_methods.cpp (methods of
// str, dict, list ...), jinja_filters.cpp and jinja_filters_seq.cpp (filters), jinja_tests.cpp (tests),
// jinja_format.cpp (printf-style formatting). Semantics are those of jinja2 3.1 with the environment that
// Hugging Face transformers sets up for chat templates (ImmutableSandboxedEnvironment, trim_blocks,
// lstrip_blocks, loopcontrols, own tojson).
#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace deltatune::jinja {

struct Scope {
  const Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> names;
};

/// A macro or the body of a call block, with the scope it was written in.
struct Macro {
  const Stmt* definition = nullptr;
  const Scope* scope = nullptr;
};

/// A span written by a generation block: bytes [begin, end) of the output, and the index of the message whose
/// loop turn it was written in (-1: outside a loop over messages).
struct GenerationSpan {
  size_t begin = 0;
  size_t end = 0;
  int message = -1;
};

/// Arguments of a builtin, matched to parameter names.
class Params {
 public:
  /// Throws Error{data} for too many, unknown or doubly given arguments, and when fewer than `required` came.
  Params(Heap& heap, std::string_view function, const CallArguments& arguments,
         std::initializer_list<std::string_view> names, size_t required = 0);
  bool has(size_t i) const { return given_[i]; }
  const Value& operator[](size_t i) const { return values_[i]; }
  bool flag(size_t i, bool otherwise) const { return has(i) ? truth(values_[i]) : otherwise; }
  /// Throws Error{data} for another type.
  int64_t integer(size_t i, int64_t otherwise) const;
  const Text& string(size_t i) const;

 private:
  Heap& heap_;
  std::string_view function_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

class Interpreter {
 public:
  explicit Interpreter(Heap& heap) : heap_(heap) { root_ = &scopes_.emplace_back(); }

  void define(std::string_view name, const Value& value) { assign(*root_, name, value); }
  void run(const Body& body);

  /// Valid after run().
  Text output;
  std::vector<GenerationSpan> spans;
  /// (offset in output, message index) whenever the message being rendered changed.
  std::vector<std::pair<size_t, int>> message_marks;

 private:
  enum class Flow { normal, broken, continued };
  struct Depth;

  // jinja_interpreter.cpp
  Flow run_body(const Body& body, Scope& scope);
  Flow run_statement(const Stmt& s, Scope& scope);
  Flow run_loop(const Stmt& s, Scope& scope);
  std::function<bool()> filtered(const Stmt& s, const Scope& scope, Loop& loop, std::vector<Value> source);
  void run_set(const Stmt& s, Scope& scope);
  void run_call_block(const Stmt& s, Scope& scope);
  void run_generation(const Stmt& s, Scope& scope);
  /// Runs a body into a text of its own.
  Text capture(const Body& body, Scope& scope);
  Scope& inner(const Scope& scope);
  void write(const Text& text);
  void assign_target(const Expr& target, const Value& value, Scope& scope);
  static void assign(Scope& scope, std::string_view name, const Value& value);
  void enter_message(const Value& item);

  // jinja_eval.cpp
  Value eval(const Expr& e, const Scope& scope);
  Value eval_node(const Expr& e, const Scope& scope);
  Value eval_name(const Expr& e, const Scope& scope);
  Value eval_binary(const Expr& e, const Scope& scope);
  Value eval_unary(const Expr& e, const Scope& scope);
  Value eval_compare(const Expr& e, const Scope& scope);
  Value eval_item(const Expr& e, const Scope& scope);
  Value eval_slice(const Value& value, const Expr& slice, const Scope& scope);
  Value eval_filter(const Expr& e, const Value& input, const Scope& scope);
  CallArguments eval_arguments(const ArgumentList& list, const Scope& scope);
  Value arithmetic(std::string_view op, const Value& a, const Value& b);
  Value integer_arithmetic(std::string_view op, int64_t a, int64_t b);
  Value float_arithmetic(std::string_view op, double a, double b);
  Value concatenate(const Value& a, const Value& b);
  Value repeat(const Value& sequence, int64_t count);
  bool contains(const Value& container, const Value& item);
  bool compare(std::string_view op, const Value& a, const Value& b);
  Value attribute(const Value& value, std::string_view name);
  Value item(const Value& value, const Value& key);
  /// An attribute as Python's getattr sees it; false when there is none.
  bool python_attribute(const Value& value, std::string_view name, Value& result);

  // jinja_call.cpp
  Value call(const Value& callee, const CallArguments& arguments);
  Value call_macro(const Macro& macro, const CallArguments& arguments);
  Value call_global(std::string_view name, const CallArguments& arguments);
  Value make_dict(const CallArguments& arguments);
  static bool is_global(std::string_view name);

  // jinja_methods.cpp
  Value call_method(const Value& self, std::string_view name, const CallArguments& arguments);
  Value string_method(const Text& self, std::string_view name, const CallArguments& arguments);
  bool string_predicate(const Text& self, std::string_view name, bool& result);
  Value string_search(const Text& self, std::string_view name, const CallArguments& arguments);
  Value string_pieces(const Text& self, std::string_view name, const CallArguments& arguments);
  Value list_method(const List& self, std::string_view name, const CallArguments& arguments);
  Value dict_method(const Value& self, std::string_view name, const CallArguments& arguments);
  bool loop_attribute(Loop& loop, std::string_view name, Value& result);
  Value loop_method(Loop& self, std::string_view name, const CallArguments& arguments);
  Text cased(const Text& text, Case how);
  Text joined(const Text& separator, const std::vector<Value>& items, bool strings_only);

  // jinja_filters.cpp, jinja_filters_seq.cpp
  Value filter(std::string_view name, const Value& input, const CallArguments& arguments);
  bool text_filter(std::string_view name, const Value& input, const CallArguments& arguments, Value& result);
  bool number_filter(std::string_view name, const Value& input, const CallArguments& arguments,
                     Value& result);
  bool sequence_filter(std::string_view name, const Value& input, const CallArguments& arguments,
                       Value& result);
  bool sorting_filter(std::string_view name, const Value& input, const CallArguments& arguments,
                      Value& result);
  Value filter_tojson(const Value& input, const CallArguments& arguments);
  Value filter_int(const Value& input, const CallArguments& arguments);
  Value filter_round(const Value& input, const CallArguments& arguments);
  Value filter_indent(const Value& input, const CallArguments& arguments);
  Value filter_truncate(const Value& input, const CallArguments& arguments);
  Value filter_map(const Value& input, const CallArguments& arguments);
  Value filter_select(std::string_view name, const Value& input, const CallArguments& arguments);
  Value filter_batch(std::string_view name, const Value& input, const CallArguments& arguments);
  Value filter_sort(const Value& input, const CallArguments& arguments);
  Value filter_extreme(std::string_view name, const Value& input, const CallArguments& arguments);
  Value filter_unique(const Value& input, const CallArguments& arguments);
  Value filter_groupby(const Value& input, const CallArguments& arguments);
  Value filter_sum(const Value& input, const CallArguments& arguments);
  Value filter_dictsort(const Value& input, const CallArguments& arguments);
  Value by_path(Value value, const Value& path, bool ignore_case);
  Value fold_case(const Value& value);
  Text string_of(const Value& value) { return to_text(heap_, value); }

  // jinja_tests.cpp
  bool test(std::string_view name, const Value& value, const CallArguments& arguments);

  // jinja_format.cpp
  Value printf_format(const Text& pattern, const Value& arguments);
  Value brace_format(const Text& pattern, const CallArguments& arguments);
  Text format_field(const Value& value, std::string_view spec);

  Heap& heap_;
  std::deque<Scope> scopes_;
  std::deque<Macro> macros_;
  Scope* root_ = nullptr;
  Text* out_ = nullptr;
  int depth_ = 0;
  int message_ = -1;
  bool in_generation_ = false;

  friend struct Depth;
};

/// Guards the recursion of the interpreter.
struct Interpreter::Depth {
  explicit Depth(Interpreter& owner) : owner_(owner) {
    if (++owner_.depth_ > owner_.heap_.limits().depth) {
      owner_.heap_.fail("the template recurses too deeply", "look for a macro that calls itself without end");
    }
  }
  ~Depth() { --owner_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
  Interpreter& owner_;
};

}  // namespace deltatune::jinja
