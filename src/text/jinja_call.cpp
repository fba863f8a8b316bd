// Calling: parameters of builtins, macros, and the global functions of a chat template.
#include <ctime>

#include "base/format.h"
#include "text/jinja_interpreter.h"

namespace deltatune::jinja {

Params::Params(Heap& heap, std::string_view function, const CallArguments& arguments,
               std::initializer_list<std::string_view> names, size_t required)
    : heap_(heap), function_(function), values_(names.size()), given_(names.size(), false) {
  if (arguments.positional.size() > names.size()) {
    heap.fail(format("{}() takes at most {} arguments, {} were given", function, names.size(),
                     arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = arguments.positional[i];
    given_[i] = true;
  }
  for (const auto& [name, value] : arguments.named) {
    size_t i = 0;
    while (i < names.size() && names.begin()[i] != name) ++i;
    if (i == names.size()) heap.fail(format("{}() has no argument '{}'", function, name));
    if (given_[i]) heap.fail(format("{}() was given '{}' twice", function, name));
    values_[i] = value;
    given_[i] = true;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!given_[i]) heap.fail(format("{}() needs an argument '{}'", function, names.begin()[i]));
  }
}

int64_t Params::integer(size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  if (!values_[i].is_int())
    heap_.fail(format("{}() needs an integer, found {}", function_, type_name(values_[i])));
  return values_[i].as_int();
}

const Text& Params::string(size_t i) const {
  if (!values_[i].is_string()) {
    if (values_[i].is(Kind::undefined)) heap_.fail_undefined(values_[i]);
    heap_.fail(format("{}() needs a string, found {}", function_, type_name(values_[i])));
  }
  return *values_[i].text;
}

CallArguments Interpreter::eval_arguments(const ArgumentList& list, const Scope& scope) {
  CallArguments result;
  for (const ExprPtr& e : list.positional) result.positional.push_back(eval(*e, scope));
  for (const auto& [name, e] : list.named) result.named.emplace_back(name, eval(*e, scope));
  if (list.star) {
    const Value more = eval(*list.star, scope);
    for (const Value& v : iterate(heap_, more)) result.positional.push_back(v);
  }
  if (list.double_star) {
    const Value more = eval(*list.double_star, scope);
    if (!more.is(Kind::dict)) heap_.fail(format("** needs a mapping, found {}", type_name(more)));
    for (const auto& [key, value] : more.dict->items) {
      if (!key.is_string()) heap_.fail("the keys of a ** argument must be strings");
      result.named.emplace_back(key.text->bytes, value);
    }
  }
  return result;
}

Value Interpreter::call(const Value& callee, const CallArguments& arguments) {
  const Depth guard(*this);
  heap_.charge(1);
  switch (callee.kind) {
    case Kind::macro:
      return call_macro(*callee.macro, arguments);
    case Kind::bound:
      if (callee.bound->self.is(Kind::undefined)) return call_global(callee.bound->name, arguments);
      return call_method(callee.bound->self, callee.bound->name, arguments);
    case Kind::undefined:
      heap_.fail_undefined(callee);
    case Kind::loop:
      heap_.unsupported("calling loop(...): recursive loops are not supported");
    default:
      heap_.fail(format("a value of type {} cannot be called", type_name(callee)));
  }
}

Value Interpreter::call_macro(const Macro& macro, const CallArguments& arguments) {
  const Stmt& def = *macro.definition;
  const int line = heap_.line;
  Scope& scope = inner(*macro.scope);
  const size_t count = def.parameters.size();
  std::vector<bool> used(arguments.named.size(), false);
  const auto named = [&](std::string_view name) -> const Value* {
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i] && arguments.named[i].first == name) {
        used[i] = true;
        return &arguments.named[i].second;
      }
    }
    return nullptr;
  };
  bool caller_is_parameter = false;
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = def.parameters[i];
    caller_is_parameter |= parameter.name == "caller";
    const Value* given = i < arguments.positional.size() ? &arguments.positional[i] : named(parameter.name);
    Value value;
    if (given) {
      value = *given;
    } else if (parameter.default_value) {
      value = eval(*parameter.default_value, scope);
    } else {
      value = heap_.undefined(format("parameter '{}' was not provided", parameter.name));
    }
    assign(scope, parameter.name, value);
  }
  if (def.uses_caller && !caller_is_parameter) {
    const Value* caller = named("caller");
    assign(scope, "caller", caller ? *caller : heap_.undefined("No caller defined"));
  }
  if (def.uses_kwargs) {
    std::vector<std::pair<Value, Value>> rest;
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i])
        rest.emplace_back(heap_.text(arguments.named[i].first, from_template), arguments.named[i].second);
    }
    assign(scope, "kwargs", heap_.dict(std::move(rest)));
  } else {
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i])
        heap_.fail(format("macro '{}' takes no argument '{}'", def.name, arguments.named[i].first));
    }
  }
  if (def.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
    assign(scope, "varargs", heap_.list(std::move(rest), ListKind::tuple));
  } else if (arguments.positional.size() > count) {
    heap_.fail(format("macro '{}' takes at most {} arguments", def.name, count));
  }
  const Value result = heap_.text(capture(def.body, scope));
  heap_.line = line;
  return result;
}

bool Interpreter::is_global(std::string_view name) {
  return name == "range" || name == "dict" || name == "namespace" || name == "raise_exception" ||
         name == "strftime_now";
}

Value Interpreter::make_dict(const CallArguments& arguments) {
  std::vector<std::pair<Value, Value>> items;
  if (arguments.positional.size() > 1) heap_.fail("dict() takes at most one positional argument");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is(Kind::dict)) {
      heap_.reserve(from.dict->items.size() * 2 * sizeof(Value));
      items = from.dict->items;
    } else {
      for (const Value& pair : iterate(heap_, from)) {
        const std::vector<Value> parts = iterate(heap_, pair);
        if (parts.size() != 2) heap_.fail("dict() needs pairs of key and value");
        set_item(heap_, items, parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named)
    set_item(heap_, items, heap_.text(name, from_template), value);
  return heap_.dict(std::move(items));
}

Value Interpreter::call_global(std::string_view name, const CallArguments& arguments) {
  if (name == "range") {
    const Params p(heap_, "range", arguments, {"start", "stop", "step"}, 1);
    if (!arguments.named.empty()) heap_.fail("range() takes no named arguments");
    if (!p.has(1)) return heap_.range(0, p.integer(0, 0), 1);
    return heap_.range(p.integer(0, 0), p.integer(1, 0), p.integer(2, 1));
  }
  if (name == "dict") return make_dict(arguments);
  if (name == "namespace") {
    const Value made = heap_.name_space();
    for (const auto& [key, value] : make_dict(arguments).dict->items) {
      if (!key.is_string()) heap_.fail("the names of a namespace must be strings");
      if (key.text->bytes.starts_with('_'))
        heap_.fail("a namespace attribute may not start with an underscore");
      made.space->items.emplace_back(key.text->bytes, value);
    }
    return made;
  }
  if (name == "raise_exception") {
    const Params p(heap_, "raise_exception", arguments, {"message"}, 1);
    heap_.fail(to_text(heap_, p[0]).bytes, "the chat template refuses this conversation: correct the row");
  }
  const Params p(heap_, "strftime_now", arguments, {"format"}, 1);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[512];
  const std::string& pattern = p.string(0).bytes;
  if (pattern.size() > 200) heap_.fail("strftime_now() was given too long a format");
  return heap_.text(std::string_view(buffer, std::strftime(buffer, sizeof buffer, pattern.c_str(), &local)),
                    from_content);
}

}  // namespace deltatune::jinja
