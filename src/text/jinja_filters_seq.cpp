// Filters on sequences and mappings, as jinja2's filters.py defines them.
//
// map, select and their kin return iterators (readable once, no length), as in jinja2; their work is done at
// once.
#include <algorithm>

#include "base/format.h"
#include "text/jinja_interpreter.h"

namespace deltatune::jinja {
namespace {

bool absent(const Params& p, size_t i) {
  return !p.has(i) || p[i].is(Kind::none);
}

}  // namespace

/// Follows "a.b.0" (or an integer) from `value` with subscripts; `ignore_case` lowers a string at the end.
Value Interpreter::by_path(Value value, const Value& path, bool ignore_case) {
  if (path.is_string()) {
    for (const Text& part : split(*path.text, ".", -1, false)) {
      const bool number =
          !part.empty() && part.size() < 18 &&
          std::all_of(part.bytes.begin(), part.bytes.end(), [](char c) { return c >= '0' && c <= '9'; });
      value = item(value, number ? Value(int64_t{std::stoll(part.bytes)}) : heap_.text(part));
    }
  } else if (!path.is(Kind::none) && !path.is(Kind::undefined)) {
    value = item(value, path);
  }
  return ignore_case ? fold_case(value) : value;
}

Value Interpreter::fold_case(const Value& value) {
  return value.is_string() ? heap_.text(cased(*value.text, Case::lower)) : value;
}

bool Interpreter::sequence_filter(std::string_view name, const Value& input, const CallArguments& arguments,
                                  Value& result) {
  const auto plain = [&] { const Params p(heap_, name, arguments, {}); };
  if (name == "length" || name == "count") {
    plain();
    const int64_t size = length(input);
    if (size < 0) heap_.fail(format("a value of type {} has no length", type_name(input)));
    result = Value(size);
  } else if (name == "list") {
    plain();
    result = heap_.list(iterate(heap_, input));
  } else if (name == "first") {
    plain();
    if (input.is(Kind::list) && input.list->kind == ListKind::iterator)
      heap_.unsupported("first of a generator");
    const std::vector<Value> items = iterate(heap_, input);
    result = items.empty() ? heap_.undefined("No first item, sequence was empty.") : items[0];
  } else if (name == "last") {
    plain();
    if (input.is(Kind::list) && input.list->kind == ListKind::iterator) {
      heap_.fail("a generator cannot be reversed");
    }
    const std::vector<Value> items = iterate(heap_, input);
    result = items.empty() ? heap_.undefined("No last item, sequence was empty.") : items.back();
  } else if (name == "reverse") {
    plain();
    if (input.is_string()) {
      Text text;
      text.markup = input.text->markup;
      const std::vector<size_t> at = char_offsets(input.text->bytes);
      for (size_t i = at.size() - 1; i > 0; --i) text.append(*input.text, at[i - 1], at[i]);
      result = heap_.text(std::move(text));
    } else {
      std::vector<Value> items = iterate(heap_, input);
      std::reverse(items.begin(), items.end());
      const bool lazy =
          input.is(Kind::dict) || (input.is(Kind::list) && input.list->kind != ListKind::iterator);
      result = heap_.list(std::move(items), lazy ? ListKind::iterator : ListKind::list);
    }
  } else if (name == "items") {
    plain();
    if (!input.is(Kind::dict) && !input.is(Kind::undefined))
      heap_.fail("items needs a mapping: Can only get item pairs from a mapping.",
                 "give an object, not a text that holds JSON");
    std::vector<Value> items;
    if (input.is(Kind::dict)) items = dict_method(input, "items", {}).list->items;
    result = heap_.list(std::move(items), ListKind::iterator);
  } else if (name == "map") {
    result = filter_map(input, arguments);
  } else if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    result = filter_select(name, input, arguments);
  } else if (name == "batch" || name == "slice") {
    result = filter_batch(name, input, arguments);
  } else {
    return false;
  }
  return true;
}

Value Interpreter::filter_map(const Value& input, const CallArguments& arguments) {
  std::vector<Value> items;
  if (!truth(input)) return heap_.list({}, ListKind::iterator);
  items = iterate(heap_, input);
  if (arguments.positional.empty()) {
    const Params p(heap_, "map", arguments, {"attribute", "default"}, 1);
    for (Value& v : items) {
      if (absent(p, 1)) {
        v = by_path(v, p[0], false);
        continue;
      }
      // The default replaces an undefined value at every step of the path.
      const std::vector<Text> parts =
          p[0].is_string() ? split(*p[0].text, ".", -1, false) : std::vector<Text>();
      if (parts.empty()) v = item(v, p[0]);
      for (const Text& part : parts) {
        v = by_path(v, heap_.text(part), false);
        if (v.is(Kind::undefined)) v = p[1];
      }
      if (v.is(Kind::undefined)) v = p[1];
    }
  } else {
    CallArguments rest = arguments;
    const Value name = rest.positional.front();
    if (!name.is_string()) heap_.fail("map needs the name of a filter");
    rest.positional.erase(rest.positional.begin());
    for (Value& v : items) v = filter(name.text->bytes, v, rest);
  }
  return heap_.list(std::move(items), ListKind::iterator);
}

Value Interpreter::filter_select(std::string_view name, const Value& input, const CallArguments& arguments) {
  const bool by_attribute = name.ends_with("attr");
  const bool keep = name.starts_with("select");
  CallArguments rest = arguments;
  const auto shift = [&](std::string_view what) {
    if (rest.positional.empty()) heap_.fail(format("{} needs {}", name, what));
    const Value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  std::vector<Value> kept;
  if (truth(input)) {
    Value path = Value::none();
    if (by_attribute) path = shift("the name of an attribute");
    Value test_name;
    if (!rest.positional.empty()) test_name = shift("the name of a test");
    if (!test_name.is(Kind::undefined) && !test_name.is_string())
      heap_.fail(format("{} needs the name of a test", name));
    for (const Value& v : iterate(heap_, input)) {
      const Value tested = by_attribute ? by_path(v, path, false) : v;
      const bool good = test_name.is_string() ? test(test_name.text->bytes, tested, rest) : truth(tested);
      if (good == keep) kept.push_back(v);
    }
  }
  return heap_.list(std::move(kept), ListKind::iterator);
}

Value Interpreter::filter_batch(std::string_view name, const Value& input, const CallArguments& arguments) {
  const Params p(heap_, name, arguments, {name == "batch" ? "linecount" : "slices", "fill_with"}, 1);
  const std::vector<Value> items = iterate(heap_, input);
  const int64_t n = p.integer(0, 1);
  if (n <= 0) heap_.fail(format("{} needs a positive number", name));
  heap_.charge(static_cast<uint64_t>(n));  // before the product below, which must not wrap
  heap_.reserve(static_cast<uint64_t>(n) * sizeof(Value));
  const auto count = static_cast<size_t>(n);
  std::vector<Value> groups;
  if (name == "batch") {
    for (size_t begin = 0; begin < items.size(); begin += count) {
      const size_t end = items.size() - begin < count ? items.size() : begin + count;
      std::vector<Value> group(items.begin() + static_cast<std::ptrdiff_t>(begin),
                               items.begin() + static_cast<std::ptrdiff_t>(end));
      while (!absent(p, 1) && group.size() < count) group.push_back(p[1]);
      groups.push_back(heap_.list(std::move(group)));
      if (end == items.size()) break;
    }
  } else {
    const size_t each = items.size() / count;
    const size_t extra = items.size() % count;
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t size = each + (i < extra ? 1 : 0);
      std::vector<Value> group(items.begin() + static_cast<std::ptrdiff_t>(at),
                               items.begin() + static_cast<std::ptrdiff_t>(at + size));
      at += size;
      if (!absent(p, 1) && i >= extra) group.push_back(p[1]);
      groups.push_back(heap_.list(std::move(group)));
    }
  }
  return heap_.list(std::move(groups), ListKind::iterator);
}

bool Interpreter::sorting_filter(std::string_view name, const Value& input, const CallArguments& arguments,
                                 Value& result) {
  if (name == "sort") {
    result = filter_sort(input, arguments);
  } else if (name == "min" || name == "max") {
    result = filter_extreme(name, input, arguments);
  } else if (name == "unique") {
    result = filter_unique(input, arguments);
  } else if (name == "groupby") {
    result = filter_groupby(input, arguments);
  } else if (name == "sum") {
    result = filter_sum(input, arguments);
  } else if (name == "dictsort") {
    result = filter_dictsort(input, arguments);
  } else {
    return false;
  }
  return true;
}

Value Interpreter::filter_sort(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool fold = !p.flag(1, false);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& v : iterate(heap_, input)) {
    std::vector<Value> key;
    if (!absent(p, 2) && p[2].is_string()) {
      for (const Text& path : split(*p[2].text, ",", -1, false))
        key.push_back(by_path(v, heap_.text(path), fold));
    } else {
      key.push_back(absent(p, 2) ? by_path(v, Value::none(), fold) : by_path(v, p[2], fold));
    }
    keyed.emplace_back(heap_.list(std::move(key)), v);
  }
  const bool reverse = p.flag(0, false);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(heap_, b.first, a.first) : less(heap_, a.first, b.first);
  });
  std::vector<Value> items;
  for (const auto& pair : keyed) items.push_back(pair.second);
  return heap_.list(std::move(items));
}

Value Interpreter::filter_extreme(std::string_view name, const Value& input, const CallArguments& arguments) {
  const Params p(heap_, name, arguments, {"case_sensitive", "attribute"});
  const bool fold = !p.flag(0, false);
  const Value path = p.has(1) ? p[1] : Value::none();
  const std::vector<Value> items = iterate(heap_, input);
  if (items.empty()) return heap_.undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key = by_path(items[0], path, fold);
  for (size_t i = 1; i < items.size(); ++i) {
    const Value key = by_path(items[i], path, fold);
    if (name == "min" ? less(heap_, key, best_key) : less(heap_, best_key, key)) {
      best = i;
      best_key = key;
    }
  }
  return items[best];
}

Value Interpreter::filter_unique(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "unique", arguments, {"case_sensitive", "attribute"});
  const bool fold = !p.flag(0, false);
  std::vector<std::pair<Value, Value>> seen;
  std::vector<Value> kept;
  for (const Value& v : iterate(heap_, input)) {
    const size_t before = seen.size();
    set_item(heap_, seen, by_path(v, p.has(1) ? p[1] : Value::none(), fold), v);
    if (seen.size() > before) kept.push_back(v);
  }
  return heap_.list(std::move(kept), ListKind::iterator);
}

Value Interpreter::filter_groupby(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  if (!absent(p, 1)) heap_.unsupported("groupby with a default");
  const bool fold = !p.flag(2, false);
  CallArguments sorting;
  sorting.named.emplace_back("attribute", p[0]);
  sorting.named.emplace_back("case_sensitive", Value(!fold));
  if (p[0].is_string() && p[0].text->bytes.find(',') != std::string::npos)
    heap_.unsupported("groupby of several attributes");
  const Value sorted = filter_sort(input, sorting);
  std::vector<Value> groups;
  std::vector<Value> group;
  const auto& items = sorted.list->items;
  for (size_t i = 0; i < items.size(); ++i) {
    group.push_back(items[i]);
    const bool last = i + 1 == items.size() ||
                      !equal(heap_, by_path(items[i], p[0], fold), by_path(items[i + 1], p[0], fold));
    if (!last) continue;
    const Value key = by_path(group[0], p[0], false);
    groups.push_back(heap_.list({key, heap_.list(std::move(group))}, ListKind::tuple));
    group.clear();
  }
  return heap_.list(std::move(groups));
}

Value Interpreter::filter_sum(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "sum", arguments, {"attribute", "start"});
  Value total = p.has(1) ? p[1] : Value(int64_t{0});
  if (total.is_string()) heap_.fail("sum cannot add strings (use join)");
  for (const Value& v : iterate(heap_, input)) {
    total = arithmetic("+", total, absent(p, 0) ? v : by_path(v, p[0], false));
  }
  return total;
}

Value Interpreter::filter_dictsort(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (input.is(Kind::undefined)) heap_.fail_undefined(input);
  if (!input.is(Kind::dict)) heap_.fail(format("dictsort needs a mapping, found {}", type_name(input)));
  const std::string by = p.has(1) ? p.string(1).bytes : "key";
  if (by != "key" && by != "value") heap_.fail("dictsort sorts by 'key' or 'value'");
  CallArguments sorting;
  sorting.named.emplace_back("attribute", Value(int64_t{by == "key" ? 0 : 1}));
  sorting.named.emplace_back("case_sensitive", Value(p.flag(0, false)));
  sorting.named.emplace_back("reverse", Value(p.flag(2, false)));
  return filter_sort(dict_method(input, "items", {}), sorting);
}

}  // namespace deltatune::jinja
