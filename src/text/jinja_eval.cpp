// Expressions of the template engine.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/format.h"
#include "text/jinja_interpreter.h"

namespace deltatune::jinja {

Value Interpreter::eval(const Expr& e, const Scope& scope) {
  const Depth guard(*this);
  heap_.charge(1);
  heap_.line = e.line;
  return eval_node(e, scope);
}

Value Interpreter::eval_node(const Expr& e, const Scope& scope) {
  switch (e.kind) {
    case ExprKind::string:
      return Heap::borrow(e.text);
    case ExprKind::integer:
      return Value(e.integer);
    case ExprKind::floating:
      return Value(e.floating);
    case ExprKind::boolean:
      return Value(e.boolean);
    case ExprKind::none:
      return Value::none();
    case ExprKind::name:
      return eval_name(e, scope);
    case ExprKind::list:
    case ExprKind::tuple: {
      std::vector<Value> items;
      for (const ExprPtr& child : e.children) items.push_back(eval(*child, scope));
      return heap_.list(std::move(items), e.kind == ExprKind::list ? ListKind::list : ListKind::tuple);
    }
    case ExprKind::dict: {
      std::vector<std::pair<Value, Value>> items;
      for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
        const Value key = eval(*e.children[i], scope);
        set_item(heap_, items, key, eval(*e.children[i + 1], scope));
      }
      return heap_.dict(std::move(items));
    }
    case ExprKind::attribute:
      return attribute(eval(*e.children[0], scope), e.name);
    case ExprKind::item:
      return eval_item(e, scope);
    case ExprKind::call: {
      const Value callee = eval(*e.children[0], scope);
      return call(callee, eval_arguments(e.arguments, scope));
    }
    case ExprKind::filter:
      return eval_filter(e, Value(), scope);
    case ExprKind::test: {
      const Value value = eval(*e.children[0], scope);
      return Value(test(e.name, value, eval_arguments(e.arguments, scope)));
    }
    case ExprKind::unary:
      return eval_unary(e, scope);
    case ExprKind::binary:
      return eval_binary(e, scope);
    case ExprKind::compare:
      return eval_compare(e, scope);
    case ExprKind::concat: {
      Text text;
      for (const ExprPtr& child : e.children) text.append(string_of(eval(*child, scope)));
      return heap_.text(std::move(text));
    }
    case ExprKind::conditional:
      if (truth(eval(*e.children[0], scope))) return eval(*e.children[1], scope);
      if (e.children[2]) return eval(*e.children[2], scope);
      return heap_.undefined("the inline if evaluated to false and has no else");
    case ExprKind::slice:
    case ExprKind::space_target:
      break;
  }
  heap_.unsupported("a slice outside a single subscript");
}

Value Interpreter::eval_name(const Expr& e, const Scope& scope) {
  for (const Scope* s = &scope; s; s = s->parent) {
    for (const auto& [name, value] : s->names) {
      if (name == e.name) return value;
    }
  }
  if (is_global(e.name)) return heap_.bound(Value(), e.name);
  for (const char* name : {"lipsum", "cycler", "joiner", "self", "super"}) {
    if (e.name == name) heap_.unsupported(format("the global '{}' is not supported", name));
  }
  return heap_.undefined(format("'{}' is undefined", e.name));
}

/// `input` is used when the innermost filter has no input of its own (filter blocks, set blocks).
Value Interpreter::eval_filter(const Expr& e, const Value& input, const Scope& scope) {
  const Depth guard(*this);
  Value value = input;
  if (e.children[0]) {
    const bool chain = e.children[0]->kind == ExprKind::filter;
    value = chain ? eval_filter(*e.children[0], input, scope) : eval(*e.children[0], scope);
  }
  const CallArguments arguments = eval_arguments(e.arguments, scope);
  heap_.line = e.line;
  return filter(e.name, value, arguments);
}

Value Interpreter::eval_unary(const Expr& e, const Scope& scope) {
  const Value v = eval(*e.children[0], scope);
  if (e.name == "not") return Value(!truth(v));
  if (v.is(Kind::undefined)) heap_.fail_undefined(v);
  if (v.is(Kind::floating)) return Value(e.name == "-" ? -v.floating : v.floating);
  if (v.is(Kind::big_integer)) heap_.unsupported("integers beyond 64 bits can be printed, not computed with");
  if (!v.is_int()) heap_.fail(format("unary {} needs a number, found {}", e.name, type_name(v)));
  return e.name == "-" ? integer_arithmetic("-", 0, v.as_int()) : Value(v.as_int());
}

Value Interpreter::eval_binary(const Expr& e, const Scope& scope) {
  const Value a = eval(*e.children[0], scope);
  if (e.name == "and") return truth(a) ? eval(*e.children[1], scope) : a;
  if (e.name == "or") return truth(a) ? a : eval(*e.children[1], scope);
  const Value b = eval(*e.children[1], scope);
  heap_.line = e.line;
  return arithmetic(e.name, a, b);
}

Value Interpreter::eval_compare(const Expr& e, const Scope& scope) {
  Value left = eval(*e.children[0], scope);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    const Value right = eval(*e.children[i + 1], scope);
    heap_.line = e.line;
    if (!compare(e.ops[i], left, right)) return Value(false);
    left = right;
  }
  return Value(true);
}

bool Interpreter::compare(std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return equal(heap_, a, b);
  if (op == "!=") return !equal(heap_, a, b);
  if (op == "in") return contains(b, a);
  if (op == "not in") return !contains(b, a);
  if (op == "<") return less(heap_, a, b);
  if (op == ">") return less(heap_, b, a);
  // NaN is neither less nor equal; <= on sequences compares the first difference.
  const bool nan =
      (a.is(Kind::floating) && std::isnan(a.floating)) || (b.is(Kind::floating) && std::isnan(b.floating));
  if (op == "<=") return !less(heap_, b, a) && !nan;
  return !less(heap_, a, b) && !nan;
}

bool Interpreter::contains(const Value& container, const Value& item) {
  heap_.charge(1);
  switch (container.kind) {
    case Kind::string:
      if (item.is(Kind::undefined)) heap_.fail("'in <string>' needs a string, found an undefined value");
      if (!item.is_string()) heap_.fail(format("'in <string>' needs a string, found {}", type_name(item)));
      heap_.charge(container.text->size());
      return container.text->bytes.find(item.text->bytes) != std::string::npos;
    case Kind::dict:
      return find(heap_, *container.dict, item) != nullptr;
    case Kind::undefined:
      return false;
    case Kind::list: {
      if (container.list->kind == ListKind::iterator && std::exchange(container.list->spent, true))
        return false;
      const auto& items = container.list->items;
      return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equal(heap_, v, item); });
    }
    default:
      heap_.fail(format("'in' needs a sequence or mapping, found {}", type_name(container)));
  }
}

Value Interpreter::concatenate(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    Text left = string_of(a);
    Text right = string_of(b);
    const bool markup = left.markup || right.markup;
    if (markup && !left.markup) left = escape(left);
    if (markup && !right.markup) right = escape(right);
    left.append(right);
    left.markup = markup;
    return heap_.text(std::move(left));
  }
  if (a.is(Kind::list) && b.is(Kind::list) && a.list->kind == b.list->kind &&
      a.list->kind <= ListKind::tuple) {
    heap_.reserve((a.list->items.size() + b.list->items.size()) * sizeof(Value));
    std::vector<Value> items = a.list->items;
    items.insert(items.end(), b.list->items.begin(), b.list->items.end());
    return heap_.list(std::move(items), a.list->kind);
  }
  heap_.fail(format("cannot add {} and {}", type_name(a), type_name(b)),
             "a missing or null field of the message is a common cause");
}

Value Interpreter::repeat(const Value& sequence, int64_t count) {
  const auto times = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  const uint64_t size =
      sequence.is_string() ? 2 * sequence.text->size() : sequence.list->items.size() * sizeof(Value);
  if (size > 0 && times > heap_.limits().bytes / size)
    heap_.reserve(std::numeric_limits<uint32_t>::max() * uint64_t{16});
  heap_.reserve(size * times);
  if (sequence.is_string()) {
    Text text;
    text.markup = sequence.text->markup;
    for (uint64_t i = 0; size > 0 && i < times; ++i) text.append(*sequence.text);
    return heap_.text(std::move(text));
  }
  std::vector<Value> items;
  const auto& from = sequence.list->items;
  for (uint64_t i = 0; size > 0 && i < times; ++i) items.insert(items.end(), from.begin(), from.end());
  return heap_.list(std::move(items), sequence.list->kind);
}

Value Interpreter::arithmetic(std::string_view op, const Value& a, const Value& b) {
  if (a.is(Kind::undefined)) heap_.fail_undefined(a);
  if (op == "%" && a.is_string()) return printf_format(*a.text, b);
  if (b.is(Kind::undefined)) heap_.fail_undefined(b);
  if (a.is_int() && b.is_int()) return integer_arithmetic(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return float_arithmetic(op, a.as_double(), b.as_double());
  if (a.is(Kind::big_integer) || b.is(Kind::big_integer)) {
    heap_.unsupported("integers beyond 64 bits can be printed, not computed with");
  }
  if (op == "+") return concatenate(a, b);
  const auto repeatable = [](const Value& v) {
    return v.is_string() || (v.is(Kind::list) && v.list->kind <= ListKind::tuple);
  };
  if (op == "*" && repeatable(a) && b.is_int()) return repeat(a, b.as_int());
  if (op == "*" && repeatable(b) && a.is_int()) return repeat(b, a.as_int());
  if (op == "-" && a.is(Kind::list) && a.list->kind >= ListKind::keys) heap_.unsupported("set arithmetic");
  heap_.fail(format("cannot apply {} to {} and {}", op, type_name(a), type_name(b)));
}

Value Interpreter::integer_arithmetic(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    if (b < 0) return float_arithmetic(op, static_cast<double>(a), static_cast<double>(b));
    result = 1;
    int64_t base = a;
    for (int64_t n = b; n > 0 && !overflow; n >>= 1) {
      if (n & 1) overflow = __builtin_mul_overflow(result, base, &result);
      if (n > 1 && !overflow) overflow = __builtin_mul_overflow(base, base, &base);
    }
  } else {
    if (b == 0) heap_.fail("division by zero");
    if (op == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
    overflow = a == std::numeric_limits<int64_t>::min() && b == -1;
    if (!overflow) {
      const int64_t quotient = a / b;
      const int64_t rest = a % b;
      const bool down = rest != 0 && (rest < 0) != (b < 0);
      result = op == "//" ? quotient - down : rest + (down ? b : 0);
    } else if (op == "%") {
      return Value(int64_t{0});
    }
  }
  if (overflow) heap_.unsupported("an integer beyond 64 bits");
  return Value(result);
}

Value Interpreter::float_arithmetic(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) heap_.fail("zero cannot be raised to a negative power");
    if (a < 0 && std::isfinite(b) && b != std::floor(b)) heap_.unsupported("complex numbers");
    const double power = std::pow(a, b);
    if (std::isinf(power) && std::isfinite(a) && std::isfinite(b))
      heap_.fail("the result of ** is too large");
    return Value(power);
  }
  if (b == 0) heap_.fail("division by zero");
  if (op == "/") return Value(a / b);
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (op == "%") return Value(rest);
  if (quotient == 0) return Value(std::copysign(0.0, a / b));
  const double floor = std::floor(quotient);
  return Value(quotient - floor > 0.5 ? floor + 1 : floor);
}

Value Interpreter::eval_item(const Expr& e, const Scope& scope) {
  const Value value = eval(*e.children[0], scope);
  const Expr& index = *e.children[1];
  if (index.kind == ExprKind::slice) return eval_slice(value, index, scope);
  const Value key = eval(index, scope);
  heap_.line = e.line;
  return item(value, key);
}

Value Interpreter::eval_slice(const Value& value, const Expr& slice, const Scope& scope) {
  int64_t parts[3] = {0, 0, 1};
  bool given[3] = {false, false, false};
  for (size_t i = 0; i < 3; ++i) {
    if (!slice.children[i]) continue;
    const Value v = eval(*slice.children[i], scope);
    if (v.is(Kind::none)) continue;
    if (v.is(Kind::undefined)) heap_.fail_undefined(v);
    if (!v.is_int()) heap_.fail(format("a slice needs integers, found {}", type_name(v)));
    parts[i] = v.as_int();
    given[i] = true;
  }
  if (value.is(Kind::undefined)) heap_.fail_undefined(value);
  const bool list =
      value.is(Kind::list) && (value.list->kind <= ListKind::tuple || value.list->kind == ListKind::range);
  if (!value.is_string() && !list) heap_.fail(format("a value of type {} has no slices", type_name(value)));
  if (parts[2] == 0) heap_.fail("a slice needs a step other than zero");
  const int64_t step = parts[2];
  std::vector<size_t> at;
  if (value.is_string()) at = char_offsets(value.text->bytes);
  const auto size = static_cast<int64_t>(value.is_string() ? at.size() - 1 : value.list->items.size());
  heap_.charge(static_cast<uint64_t>(size));
  const auto clamp = [&](size_t i, int64_t otherwise) {
    if (!given[i]) return otherwise;
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? size : size - 1;
    return parts[i] < 0 ? std::max(parts[i] + size, low) : std::min(parts[i], high);
  };
  const int64_t begin = clamp(0, step > 0 ? 0 : size - 1);
  const int64_t end = clamp(1, step > 0 ? size : -1);
  if (list && value.list->kind == ListKind::range) {
    const List& range = *value.list;
    const auto at_index = [&](int64_t i) {
      return integer_arithmetic("+", range.range_begin, integer_arithmetic("*", i, range.range_step).integer)
          .integer;
    };
    return heap_.range(at_index(begin), at_index(end),
                       integer_arithmetic("*", range.range_step, step).integer);
  }
  Text text;
  if (value.is_string()) text.markup = value.text->markup;
  std::vector<Value> items;
  // size bounds the number of turns, so i + step is only formed while another turn may follow
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    const auto u = static_cast<size_t>(i);
    if (value.is_string()) {
      text.append(*value.text, at[u], at[u + 1]);
    } else {
      items.push_back(value.list->items[u]);
    }
    if (step > 0 ? step >= end - i : step <= end - i) break;
    i += step;
  }
  if (value.is_string()) return heap_.text(std::move(text));
  return heap_.list(std::move(items), value.list->kind);
}

Value Interpreter::item(const Value& value, const Value& key) {
  heap_.charge(1);
  if (value.is(Kind::undefined)) heap_.fail_undefined(value);
  if (value.is(Kind::dict)) {
    const bool hashable = !key.is(Kind::dict) && !(key.is(Kind::list) && key.list->kind == ListKind::list);
    const Value* found = hashable ? find(heap_, *value.dict, key) : nullptr;
    if (found) return *found;
  } else if (key.is_int() && (value.is_string() || value.is(Kind::list))) {
    const int64_t size = length(value);
    const bool indexed =
        value.is_string() || value.list->kind <= ListKind::tuple || value.list->kind == ListKind::range;
    int64_t i = key.as_int();
    if (i < 0) i += size;
    if (indexed && i >= 0 && i < size) {
      if (!value.is_string()) return value.list->items[static_cast<size_t>(i)];
      heap_.charge(value.text->size());
      const std::vector<size_t> at = char_offsets(value.text->bytes);
      return heap_.text(value.text->slice(at[static_cast<size_t>(i)], at[static_cast<size_t>(i) + 1]));
    }
    return heap_.undefined(format("a value of type {} has no element {}", type_name(value), key.as_int()));
  }
  if (key.is_string()) {
    Value result;
    if (python_attribute(value, key.text->bytes, result)) return result;
    return heap_.undefined(
        format("a value of type {} has no attribute '{}'", type_name(value), key.text->bytes));
  }
  return heap_.undefined(format("a value of type {} has no such element", type_name(value)));
}

Value Interpreter::attribute(const Value& value, std::string_view name) {
  heap_.charge(1);
  if (value.is(Kind::undefined)) heap_.fail_undefined(value);
  Value result;
  if (python_attribute(value, name, result)) return result;
  if (value.is(Kind::dict)) {
    heap_.charge(value.dict->items.size());
    if (const Value* found = find(*value.dict, name)) return *found;
  }
  return heap_.undefined(format("a value of type {} has no attribute '{}'", type_name(value), name));
}

}  // namespace deltatune::jinja
