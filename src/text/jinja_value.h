// Values of the template engine, with Python's truth, equality, order, str(), repr() and json.dumps.
//
// All objects live in a Heap for the duration of one render and are freed with it; a Value is a tag and a
// pointer. Lists and dicts never change after they were made (chat templates run in an immutable sandbox);
// namespaces are the one mutable object. Everything that costs time or memory is charged to the Heap, which
// bounds both, so that any template ends. Integers have 64 bits: more is an error, except that big JSON
// integers can be passed through.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/jinja_text.h"

namespace deltatune::jinja {

struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Macro;
struct Bound;
class Heap;

enum class Kind : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  big_integer,
  floating,
  string,
  list,
  dict,
  name_space,
  loop,
  macro,
  bound
};

struct Value {
  Kind kind = Kind::undefined;
  union {
    bool boolean;
    int64_t integer;
    double floating;
    const Text* text;  ///< string; spelling of a big_integer; why it is undefined (may be null)
    const List* list;
    const Dict* dict;
    Namespace* space;
    Loop* loop;
    const Macro* macro;
    const Bound* bound;
  };
  Value() : text(nullptr) {}
  explicit Value(bool b) : kind(Kind::boolean), boolean(b) {}
  explicit Value(int64_t i) : kind(Kind::integer), integer(i) {}
  explicit Value(double d) : kind(Kind::floating), floating(d) {}
  static Value none() {
    Value v;
    v.kind = Kind::none;
    return v;
  }
  bool is(Kind k) const { return kind == k; }
  bool is_string() const { return kind == Kind::string; }
  /// bool or int, as Python's int.
  bool is_int() const { return kind == Kind::integer || kind == Kind::boolean; }
  bool is_number() const { return is_int() || kind == Kind::floating; }
  int64_t as_int() const { return kind == Kind::boolean ? int64_t{boolean} : integer; }
  double as_double() const { return kind == Kind::floating ? floating : static_cast<double>(as_int()); }
};

/// What a List stands for: iterators can be read once and have no length.
enum class ListKind : uint8_t { list, tuple, iterator, keys, values, items, range };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::list;
  int depth = 1;
  mutable bool spent = false;
  int64_t range_begin = 0, range_end = 0, range_step = 1;  ///< for printing a range
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  /// Index in the conversation when this is a message, else -1.
  int message = -1;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
};

struct Loop {
  std::vector<Value> items;  ///< taken so far; all of them when `more` is empty
  /// Takes the next item that passes the test of the loop; false: there is none. The test runs no earlier
  /// than the template can see.
  std::function<bool()> more;
  size_t index = 0;
  int depth = 0;
  Value last_changed;
  bool changed_called = false;
  bool has(size_t i) {
    while (items.size() <= i && more && more()) {
    }
    return i < items.size();
  }
  size_t length() {
    while (more && more()) {
    }
    return items.size();
  }
};

/// A function of the engine or a method bound to an object.
struct Bound {
  Value self;  ///< undefined: a global function
  std::string_view name;
};

struct Limits {
  uint64_t steps = uint64_t{1} << 32;  ///< about bytes touched plus nodes evaluated
  uint64_t bytes = uint64_t{1} << 30;  ///< memory of all values of one render
  int depth = 400;                     ///< nesting of expressions, statements and macro calls while running
};

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

class Heap {
 public:
  Heap(Limits limits, std::string where) : limits_(limits), where_(std::move(where)) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// Throws Error{data} when the render has used up its steps.
  void charge(uint64_t steps);
  /// The same for memory, before it is allocated.
  void reserve(uint64_t bytes);
  const Limits& limits() const { return limits_; }

  Value text(Text text);
  Value text(std::string_view bytes, char origin) { return text(Text(bytes, origin)); }
  /// A constant that outlives the heap.
  static Value borrow(const Text& text);
  Value list(std::vector<Value> items, ListKind kind = ListKind::list);
  Value range(int64_t begin, int64_t end, int64_t step);
  Value dict(std::vector<std::pair<Value, Value>> items, int message = -1);
  Value undefined(std::string why);
  Value name_space();
  Value bound(Value self, std::string_view name);
  Value big_integer(std::string_view spelling);
  Loop& loop();
  /// Strings of `value` get `origin`.
  Value from_json(const json::Value& value, char origin);

  /// Throws Error{data} at the current line.
  [[noreturn]] void fail(const std::string& what, const std::string& fix = {}) const;
  [[noreturn]] void unsupported(const std::string& what) const;
  [[noreturn]] void fail_undefined(const Value& value) const;

  /// Line of the template that is being evaluated.
  int line = 1;

 private:
  int depth_of(const Value& value) const;

  Limits limits_;
  std::string where_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
  std::deque<Text> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> spaces_;
  std::deque<Loop> loops_;
  std::deque<Bound> bounds_;
};

/// Python's name of the type ("str", "dict", "Undefined" ...).
const char* type_name(const Value& value);
bool truth(const Value& value);
bool equal(Heap& heap, const Value& a, const Value& b);
/// a < b; throws Error for types that Python cannot order.
bool less(Heap& heap, const Value& a, const Value& b);
/// str(value): a string keeps its origins; all else is content, except that numbers, booleans and None made
/// of template text are still content.
Text to_text(Heap& heap, const Value& value);
/// repr(value).
std::string repr(Heap& heap, const Value& value);
/// repr of a double: shortest digits, exponent below 1e-4 and from 1e16.
std::string float_repr(double value);
struct JsonStyle {
  bool ensure_ascii = false;
  bool pretty = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
/// json.dumps.
std::string to_json(Heap& heap, const Value& value, const JsonStyle& style);
/// Member of a dict, or nullptr.
const Value* find(Heap& heap, const Dict& dict, const Value& key);
const Value* find(const Dict& dict, std::string_view key);
/// Sets a key of a dict under construction.
void set_item(Heap& heap, std::vector<std::pair<Value, Value>>& items, const Value& key, const Value& value);
/// The items of an iterable (characters of a string, keys of a dict); spends iterators. Throws for others.
std::vector<Value> iterate(Heap& heap, const Value& value);
/// len(value), or -1 when it has none.
int64_t length(const Value& value);

}  // namespace deltatune::jinja
