// The heap of one render, and Python's truth, equality and order; printing is in jinja_print.cpp.
#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format.h"

namespace deltatune::jinja {
namespace {

constexpr int max_value_depth = 220;  // JSON may be nested 200 deep

}  // namespace

void Heap::charge(uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) {
    fail("the template does too much work (loops or repeated strings without end?)",
         "shorten the conversation, or mend the template");
  }
}

void Heap::reserve(uint64_t bytes) {
  charge(bytes);
  bytes_ += bytes;
  if (bytes_ > limits_.bytes) {
    fail(format("rendering needs more than {} of memory", format_bytes(limits_.bytes)),
         "shorten the conversation, or mend the template");
  }
}

void Heap::fail(const std::string& what, const std::string& fix) const {
  throw Error(ErrorKind::data, what, format("{}, line {}", where_, line),
              fix.empty() ? "mend the template, or the message or variable that it uses here" : fix);
}

void Heap::unsupported(const std::string& what) const {
  fail(what, "this engine knows the part of Jinja that chat templates use: rewrite this line");
}

void Heap::fail_undefined(const Value& value) const {
  fail(value.text ? value.text->bytes : std::string("an undefined value was used"));
}

Value Heap::borrow(const Text& text) {
  Value v;
  v.kind = Kind::string;
  v.text = &text;
  return v;
}

Value Heap::text(Text text) {
  reserve(sizeof(Text) + 2 * text.size());
  texts_.push_back(std::move(text));
  return borrow(texts_.back());
}

Value Heap::big_integer(std::string_view spelling) {
  Value v = text(spelling, from_content);
  v.kind = Kind::big_integer;
  return v;
}

Value Heap::undefined(std::string why) {
  Value v = text(Text(why, from_template));
  v.kind = Kind::undefined;
  return v;
}

int Heap::depth_of(const Value& value) const {
  return value.is(Kind::list) ? value.list->depth : value.is(Kind::dict) ? value.dict->depth : 0;
}

Value Heap::list(std::vector<Value> items, ListKind kind) {
  reserve(sizeof(List) + items.size() * sizeof(Value));
  List& list = lists_.emplace_back();
  for (const Value& item : items) list.depth = std::max(list.depth, depth_of(item) + 1);
  if (list.depth > max_value_depth) fail(format("a value is nested deeper than {} levels", max_value_depth));
  list.items = std::move(items);
  list.kind = kind;
  Value v;
  v.kind = Kind::list;
  v.list = &list;
  return v;
}

Value Heap::range(int64_t begin, int64_t end, int64_t step) {
  constexpr uint64_t max_range = 100000;  // the sandbox's MAX_RANGE
  if (step == 0) fail("range() needs a step other than zero");
  uint64_t count = 0;
  if (step > 0 ? begin < end : begin > end) {
    const uint64_t span = step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(begin)
                                   : static_cast<uint64_t>(begin) - static_cast<uint64_t>(end);
    const uint64_t stride =
        step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
    count = (span - 1) / stride + 1;
  }
  if (count > max_range) fail(format("range() of {} items: at most {} are allowed", count, max_range));
  std::vector<Value> items;
  reserve(count * sizeof(Value));
  for (uint64_t i = 0; i < count; ++i) items.emplace_back(begin + static_cast<int64_t>(i) * step);
  Value v = list(std::move(items), ListKind::range);
  List& made = lists_.back();
  made.range_begin = begin;
  made.range_end = end;
  made.range_step = step;
  return v;
}

Value Heap::dict(std::vector<std::pair<Value, Value>> items, int message) {
  reserve(sizeof(Dict) + items.size() * 2 * sizeof(Value));
  Dict& dict = dicts_.emplace_back();
  for (const auto& [key, item] : items)
    dict.depth = std::max({dict.depth, depth_of(item) + 1, depth_of(key) + 1});
  if (dict.depth > max_value_depth) fail(format("a value is nested deeper than {} levels", max_value_depth));
  dict.items = std::move(items);
  dict.message = message;
  Value v;
  v.kind = Kind::dict;
  v.dict = &dict;
  return v;
}

Value Heap::name_space() {
  reserve(sizeof(Namespace));
  Value v;
  v.kind = Kind::name_space;
  v.space = &spaces_.emplace_back();
  return v;
}

Value Heap::bound(Value self, std::string_view name) {
  reserve(sizeof(Bound));
  Value v;
  v.kind = Kind::bound;
  v.bound = &bounds_.emplace_back(Bound{self, name});
  return v;
}

Loop& Heap::loop() {
  reserve(sizeof(Loop));
  return loops_.emplace_back();
}

Value Heap::from_json(const json::Value& value, char origin) {
  charge(1);
  switch (value.type()) {
    case json::Type::null:
      return Value::none();
    case json::Type::boolean:
      return Value(value.as_bool());
    case json::Type::integer:
      return Value(value.as_integer());
    case json::Type::floating: {
      const json::Float& number = value.as_float();
      const bool integral =
          !number.spelling.empty() && number.spelling.find_first_of(".eEnN") == std::string::npos;
      return integral ? big_integer(number.spelling) : Value(number.value);
    }
    case json::Type::string:
      return text(value.as_string(), origin);
    case json::Type::array: {
      std::vector<Value> items;
      for (const json::Value& item : value.as_array()) items.push_back(from_json(item, origin));
      return list(std::move(items));
    }
    case json::Type::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, item] : value.as_object()) {
        const Value name = text(key, origin);
        items.emplace_back(name, from_json(item, origin));
      }
      return dict(std::move(items));
    }
  }
  return Value();
}

const char* type_name(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
    case Kind::big_integer:
      return "int";
    case Kind::floating:
      return "float";
    case Kind::string:
      return "str";
    case Kind::dict:
      return "dict";
    case Kind::name_space:
      return "Namespace";
    case Kind::loop:
      return "LoopContext";
    case Kind::macro:
      return "Macro";
    case Kind::bound:
      return "function";
    case Kind::list:
      break;
  }
  static constexpr const char* names[] = {"list",        "tuple",      "generator", "dict_keys",
                                          "dict_values", "dict_items", "range"};
  return names[static_cast<size_t>(value.list->kind)];
}

bool truth(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return value.boolean;
    case Kind::integer:
      return value.integer != 0;
    case Kind::floating:
      return value.floating != 0;
    case Kind::string:
      return !value.text->empty();
    case Kind::list:
      return value.list->kind == ListKind::iterator || !value.list->items.empty();
    case Kind::dict:
      return !value.dict->items.empty();
    default:
      return true;
  }
}

namespace {

/// Exact comparison of an integer with a double: -1, 0, 1, or 2 when the double is NaN.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_int() && b.is_int()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
  const double x = a.as_double();
  const double y = b.as_double();
  if (std::isnan(x) || std::isnan(y)) return 2;
  if (x != y) return x < y ? -1 : 1;
  if (a.is_int() == b.is_int() || std::abs(x) < 9007199254740992.0) return 0;
  // Equal after rounding the integer: compare exactly.
  const bool int_first = a.is_int();
  const auto exact = static_cast<__int128>(int_first ? y : x);
  const __int128 integer = int_first ? a.as_int() : b.as_int();
  const int sign = integer < exact ? -1 : integer > exact;
  return int_first ? sign : -sign;
}

bool same_sequence_kind(const List& a, const List& b) {
  return a.kind == b.kind;
}

bool equal_lists(Heap& heap, const List& a, const List& b) {
  if (&a == &b) return true;
  if (!same_sequence_kind(a, b)) return false;
  if (a.kind == ListKind::iterator || a.kind == ListKind::values) return false;
  if (a.items.size() != b.items.size()) return false;
  if (a.kind == ListKind::keys || a.kind == ListKind::items) {  // set comparison
    return std::all_of(a.items.begin(), a.items.end(), [&](const Value& x) {
      return std::any_of(b.items.begin(), b.items.end(), [&](const Value& y) { return equal(heap, x, y); });
    });
  }
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(heap, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Heap& heap, const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = find(heap, b, item.first);
    return other && equal(heap, item.second, *other);
  });
}

}  // namespace

bool equal(Heap& heap, const Value& a, const Value& b) {
  heap.charge(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::big_integer:
    case Kind::string:
      heap.charge(a.text->size());
      return a.text->bytes == b.text->bytes;
    case Kind::list:
      return equal_lists(heap, *a.list, *b.list);
    case Kind::dict:
      return equal_dicts(heap, *a.dict, *b.dict);
    case Kind::bound:
      return a.bound->name == b.bound->name && a.bound->self.text == b.bound->self.text;
    default:
      return a.text == b.text;  // identity
  }
}

bool less(Heap& heap, const Value& a, const Value& b) {
  heap.charge(1);
  if (a.is(Kind::undefined)) heap.fail_undefined(a);
  if (b.is(Kind::undefined)) heap.fail_undefined(b);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) {
    heap.charge(std::min(a.text->size(), b.text->size()));
    return a.text->bytes < b.text->bytes;  // UTF-8 sorts like code points
  }
  if (a.is(Kind::list) && b.is(Kind::list) && a.list->kind == b.list->kind &&
      a.list->kind <= ListKind::tuple) {
    const auto& x = a.list->items;
    const auto& y = b.list->items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equal(heap, x[i], y[i])) return less(heap, x[i], y[i]);
    }
    return x.size() < y.size();
  }
  if (a.is(Kind::big_integer) || b.is(Kind::big_integer)) {
    heap.unsupported("integers beyond 64 bits can be printed, not computed with");
  }
  heap.fail(format("values of type {} and {} have no order", type_name(a), type_name(b)));
}

const Value* find(Heap& heap, const Dict& dict, const Value& key) {
  if (key.is(Kind::dict) || (key.is(Kind::list) && key.list->kind == ListKind::list)) {
    heap.fail(format("a {} cannot be a key", type_name(key)));
  }
  for (const auto& [name, value] : dict.items) {
    if (equal(heap, name, key)) return &value;
  }
  return nullptr;
}

const Value* find(const Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict.items) {
    if (name.is_string() && name.text->bytes == key) return &value;
  }
  return nullptr;
}

void set_item(Heap& heap, std::vector<std::pair<Value, Value>>& items, const Value& key, const Value& value) {
  if (key.is(Kind::dict) || (key.is(Kind::list) && key.list->kind == ListKind::list)) {
    heap.fail(format("a {} cannot be a key", type_name(key)));
  }
  for (auto& [name, old] : items) {
    if (equal(heap, name, key)) {
      old = value;
      return;
    }
  }
  items.emplace_back(key, value);
}

std::vector<Value> iterate(Heap& heap, const Value& value) {
  std::vector<Value> items;
  switch (value.kind) {
    case Kind::undefined:
      return items;
    case Kind::list:
      heap.reserve(value.list->items.size() * sizeof(Value));
      if (value.list->kind == ListKind::iterator) {
        if (value.list->spent) return items;
        value.list->spent = true;
      }
      return value.list->items;
    case Kind::dict:
      heap.reserve(value.dict->items.size() * sizeof(Value));
      for (const auto& item : value.dict->items) items.push_back(item.first);
      return items;
    case Kind::string: {
      const std::vector<size_t> at = char_offsets(value.text->bytes);
      for (size_t i = 0; i + 1 < at.size(); ++i)
        items.push_back(heap.text(value.text->slice(at[i], at[i + 1])));
      return items;
    }
    default:
      heap.fail(format("a value of type {} cannot be iterated over", type_name(value)));
  }
}

int64_t length(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      return static_cast<int64_t>(char_count(value.text->bytes));
    case Kind::list:
      return value.list->kind == ListKind::iterator ? -1 : static_cast<int64_t>(value.list->items.size());
    case Kind::dict:
      return static_cast<int64_t>(value.dict->items.size());
    case Kind::loop:
      return static_cast<int64_t>(value.loop->length());
    default:
      return -1;
  }
}

}  // namespace deltatune::jinja
