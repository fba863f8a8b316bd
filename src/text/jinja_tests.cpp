// The tests behind `is`, as jinja2's tests.py defines them.
#include "base/format.h"
#include "text/jinja_interpreter.h"

namespace deltatune::jinja {
namespace {

bool is_iterable(const Value& v) {
  return v.is_string() || v.is(Kind::list) || v.is(Kind::dict) || v.is(Kind::undefined) || v.is(Kind::loop);
}

bool is_sequence(const Value& v) {
  if (v.is(Kind::list)) return v.list->kind <= ListKind::tuple || v.list->kind == ListKind::range;
  return v.is_string() || v.is(Kind::dict) || v.is(Kind::undefined);
}

/// Python's `is`: one object. Small integers and interned strings are not told apart from equal ones.
bool same(const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  if (a.is(Kind::none)) return true;
  if (a.is(Kind::boolean)) return a.boolean == b.boolean;
  if (a.is(Kind::integer)) return a.integer == b.integer;
  if (a.is_string()) return a.text == b.text || a.text->bytes == b.text->bytes;
  return a.text == b.text;
}

}  // namespace

bool Interpreter::test(std::string_view name, const Value& v, const CallArguments& arguments) {
  const auto none = [&] { const Params p(heap_, name, arguments, {}); };
  const auto other = [&]() -> Value { return Params(heap_, name, arguments, {"other"}, 1)[0]; };
  const auto modulo = [&](const Value& by) {
    return equal(heap_, arithmetic("%", v, by), Value(int64_t{0}));
  };
  if (name == "==" || name == "eq" || name == "equalto") return equal(heap_, v, other());
  if (name == "!=" || name == "ne") return !equal(heap_, v, other());
  if (name == ">" || name == "gt" || name == "greaterthan") return compare(">", v, other());
  if (name == "<" || name == "lt" || name == "lessthan") return compare("<", v, other());
  if (name == ">=" || name == "ge") return compare(">=", v, other());
  if (name == "<=" || name == "le") return compare("<=", v, other());
  if (name == "in") return contains(other(), v);
  if (name == "divisibleby") return modulo(other());
  if (name == "sameas") return same(v, other());
  none();
  if (name == "defined") return !v.is(Kind::undefined);
  if (name == "undefined") return v.is(Kind::undefined);
  if (name == "none") return v.is(Kind::none);
  if (name == "boolean") return v.is(Kind::boolean);
  if (name == "true") return v.is(Kind::boolean) && v.boolean;
  if (name == "false") return v.is(Kind::boolean) && !v.boolean;
  if (name == "integer") return v.is(Kind::integer) || v.is(Kind::big_integer);
  if (name == "float") return v.is(Kind::floating);
  if (name == "number") return v.is_number() || v.is(Kind::big_integer);
  if (name == "string") return v.is_string();
  if (name == "mapping") return v.is(Kind::dict);
  if (name == "sequence") return is_sequence(v);
  if (name == "iterable") return is_iterable(v);
  if (name == "callable")
    return v.is(Kind::bound) || v.is(Kind::macro) || v.is(Kind::undefined) || v.is(Kind::loop);
  if (name == "even") return modulo(Value(int64_t{2}));
  if (name == "odd") return equal(heap_, arithmetic("%", v, Value(int64_t{2})), Value(int64_t{1}));
  if (name == "escaped") return v.is_string() && v.text->markup;
  if (name == "lower" || name == "upper") {
    const Text text = string_of(v);
    bool result = false;
    string_predicate(text, name == "lower" ? "islower" : "isupper", result);
    return result;
  }
  heap_.unsupported(format("unknown test 'is {}'", name));
}

}  // namespace deltatune::jinja
