// Attributes and methods of Python's str, list, tuple, dict, range and of jinja2's loop.
//
// Methods that change their object are refused, as the immutable sandbox does. Case mappings and character
// classes cover ASCII; other text in them is an error, never a guess. A name that Python has and this file
// has not is an error too.
#include <algorithm>

#include "base/format.h"
#include "text/jinja_interpreter.h"

namespace deltatune::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

bool one_of(std::string_view name, Names names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Names string_methods = {
    "capitalize",   "center",       "count",   "endswith",   "find",       "format",  "index",
    "isalnum",      "isalpha",      "isascii", "isdecimal",  "isdigit",    "islower", "isnumeric",
    "isspace",      "isupper",      "join",    "ljust",      "lower",      "lstrip",  "partition",
    "removeprefix", "removesuffix", "replace", "rfind",      "rindex",     "rjust",   "rpartition",
    "rsplit",       "rstrip",       "split",   "splitlines", "startswith", "strip",   "swapcase",
    "title",        "upper",        "zfill",   "casefold"};
const Names string_unsupported = {"encode",      "expandtabs", "format_map", "isidentifier",
                                  "isprintable", "istitle",    "maketrans",  "translate"};
const Names list_mutators = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
const Names dict_methods = {"copy", "get", "items", "keys", "values"};
const Names dict_mutators = {"clear", "pop", "popitem", "setdefault", "update"};
const Names number_names = {"real",       "imag",      "numerator", "denominator", "conjugate",
                            "bit_length", "bit_count", "to_bytes",  "from_bytes",  "as_integer_ratio",
                            "is_integer", "hex",       "fromhex"};
const Names macro_names = {"name", "arguments", "catch_kwargs", "catch_varargs", "caller", "explicit_caller"};

}  // namespace

bool Interpreter::python_attribute(const Value& value, std::string_view name, Value& result) {
  const auto method = [&](Names names) {
    if (!one_of(name, names)) return false;
    result = heap_.bound(value, *std::find(names.begin(), names.end(), name));
    return true;
  };
  const auto known_but_unsupported = [&](Names names) {
    if (one_of(name, names)) heap_.unsupported(format("'{}' of {} is not supported", name, type_name(value)));
    return false;
  };
  const auto mutator = [&](Names names) {
    if (!one_of(name, names)) return false;
    result = heap_.undefined(format("'{}' would change a {}: templates may not", name, type_name(value)));
    return true;
  };
  switch (value.kind) {
    case Kind::string:
      return method(string_methods) || known_but_unsupported(string_unsupported);
    case Kind::dict:
      return method(dict_methods) || mutator(dict_mutators) || known_but_unsupported({"fromkeys"});
    case Kind::integer:
    case Kind::boolean:
    case Kind::big_integer:
    case Kind::floating:
      return known_but_unsupported(number_names);
    case Kind::macro:
      return known_but_unsupported(macro_names);
    case Kind::list:
      switch (value.list->kind) {
        case ListKind::list:
          return method({"count", "index", "copy"}) || mutator(list_mutators);
        case ListKind::tuple:
        case ListKind::range:
          return method({"count", "index"}) || known_but_unsupported({"start", "stop", "step"});
        case ListKind::iterator:
          return known_but_unsupported({"send", "throw", "close"});
        default:
          return known_but_unsupported({"isdisjoint", "mapping"});
      }
    case Kind::name_space:
      for (const auto& [key, item] : value.space->items) {
        if (key == name) {
          result = item;
          return true;
        }
      }
      return false;
    case Kind::loop:
      return method({"cycle", "changed"}) || loop_attribute(*value.loop, name, result);
    default:
      return false;
  }
}

bool Interpreter::loop_attribute(Loop& loop, std::string_view name, Value& result) {
  const auto index = static_cast<int64_t>(loop.index);
  const auto size = [&] { return static_cast<int64_t>(loop.length()); };
  if (name == "index") {
    result = Value(index + 1);
  } else if (name == "index0") {
    result = Value(index);
  } else if (name == "first") {
    result = Value(index == 0);
  } else if (name == "last") {
    result = Value(!loop.has(loop.index + 1));
  } else if (name == "length") {
    result = Value(size());
  } else if (name == "revindex") {
    result = Value(size() - index);
  } else if (name == "revindex0") {
    result = Value(size() - index - 1);
  } else if (name == "previtem") {
    result = index > 0 ? loop.items[loop.index - 1] : heap_.undefined("there is no previous item");
  } else if (name == "nextitem") {
    const bool more = loop.has(loop.index + 1);
    result = more ? loop.items[loop.index + 1] : heap_.undefined("there is no next item");
  } else if (name == "depth" || name == "depth0") {
    result = Value(int64_t{name == "depth"});
  } else {
    return false;
  }
  return true;
}

Value Interpreter::call_method(const Value& self, std::string_view name, const CallArguments& arguments) {
  switch (self.kind) {
    case Kind::string:
      heap_.charge(self.text->size());
      return string_method(*self.text, name, arguments);
    case Kind::list:
      return list_method(*self.list, name, arguments);
    case Kind::dict:
      return dict_method(self, name, arguments);
    default:
      return loop_method(*self.loop, name, arguments);
  }
}

Text Interpreter::cased(const Text& text, Case how) {
  Text result;
  heap_.charge(text.size());
  if (!casing(text, how, result)) heap_.unsupported("changing the case of text that is not ASCII");
  return result;
}

Text Interpreter::joined(const Text& separator, const std::vector<Value>& items, bool strings_only) {
  Text text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (strings_only && !items[i].is_string()) {
      heap_.fail(format("join() needs strings, found {}", type_name(items[i])));
    }
    if (i) {
      heap_.reserve(2 * separator.size());
      text.append(separator);
    }
    if (separator.markup) heap_.unsupported("join of a string that went through `safe` or `escape`");
    text.append(string_of(items[i]));
  }
  return text;
}

bool Interpreter::string_predicate(const Text& self, std::string_view name, bool& result) {
  const std::string& bytes = self.bytes;
  const auto all = [&](auto good) { return !bytes.empty() && std::all_of(bytes.begin(), bytes.end(), good); };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  const bool ascii =
      std::none_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  if (name == "isascii") {
    result = ascii;
  } else if (name == "isspace") {
    result = !bytes.empty() && strip(self, nullptr, true, false).empty();
  } else if (!one_of(name,
                     {"isdigit", "isdecimal", "isnumeric", "isalpha", "isalnum", "islower", "isupper"})) {
    return false;
  } else if (!ascii) {
    heap_.unsupported(format("{}() of text that is not ASCII", name));
  } else if (name == "isalpha") {
    result = all([&](char c) { return lower(c) || upper(c); });
  } else if (name == "isalnum") {
    result = all([&](char c) { return lower(c) || upper(c) || digit(c); });
  } else if (name == "islower") {
    result =
        std::any_of(bytes.begin(), bytes.end(), lower) && std::none_of(bytes.begin(), bytes.end(), upper);
  } else if (name == "isupper") {
    result =
        std::any_of(bytes.begin(), bytes.end(), upper) && std::none_of(bytes.begin(), bytes.end(), lower);
  } else {
    result = all(digit);
  }
  return true;
}

Value Interpreter::string_method(const Text& self, std::string_view name, const CallArguments& arguments) {
  bool answer = false;
  if (string_predicate(self, name, answer)) {
    const Params p(heap_, name, arguments, {});
    return Value(answer);
  }
  if (name == "format") return brace_format(self, arguments);
  if (one_of(name, {"strip", "lstrip", "rstrip"})) {
    const Params p(heap_, name, arguments, {"chars"});
    const std::string* chars = p.has(0) && !p[0].is(Kind::none) ? &p.string(0).bytes : nullptr;
    return heap_.text(strip(self, chars, name != "rstrip", name != "lstrip"));
  }
  if (one_of(name, {"lower", "upper", "capitalize", "title", "casefold", "swapcase"})) {
    const Params p(heap_, name, arguments, {});
    if (name == "swapcase") {
      Text text = cased(self, Case::upper);
      for (size_t i = 0; i < text.size(); ++i) {
        if (text.bytes[i] == self.bytes[i] && text.bytes[i] >= 'A' && text.bytes[i] <= 'Z') {
          text.bytes[i] = static_cast<char>(text.bytes[i] | 0x20);
        }
      }
      return heap_.text(std::move(text));
    }
    return heap_.text(cased(self, name == "upper"        ? Case::upper
                                  : name == "capitalize" ? Case::capitalize
                                  : name == "title"      ? Case::title
                                                         : Case::lower));
  }
  if (name == "replace") {
    const Params p(heap_, name, arguments, {"old", "new", "count"}, 2);
    heap_.charge(char_count(self.bytes) * (p.string(1).size() + 1));
    if (self.markup) heap_.unsupported("replace on a string that went through `safe` or `escape`");
    return heap_.text(replace(self, p.string(0).bytes, p.string(1), p.integer(2, -1)));
  }
  if (one_of(name, {"removeprefix", "removesuffix"})) {
    const Params p(heap_, name, arguments, {"affix"}, 1);
    const std::string& affix = p.string(0).bytes;
    const bool front = name == "removeprefix";
    if (front ? !self.bytes.starts_with(affix) : !self.bytes.ends_with(affix)) return heap_.text(self);
    return heap_.text(front ? self.slice(affix.size(), self.size())
                            : self.slice(0, self.size() - affix.size()));
  }
  if (one_of(name, {"find", "rfind", "index", "rindex", "count", "startswith", "endswith"})) {
    return string_search(self, name, arguments);
  }
  return string_pieces(self, name, arguments);
}

/// find, rfind, index, rindex, count, startswith, endswith: all take (what, start, end).
Value Interpreter::string_search(const Text& self, std::string_view name, const CallArguments& arguments) {
  const Params p(heap_, name, arguments, {"sub", "start", "end"}, 1);
  const std::vector<size_t> at = char_offsets(self.bytes);
  const auto size = static_cast<int64_t>(at.size()) - 1;
  const auto bound = [&](size_t i, int64_t otherwise) {
    int64_t v = p.has(i) && !p[i].is(Kind::none) ? p.integer(i, 0) : otherwise;
    if (v < 0) v = std::max<int64_t>(v + size, 0);
    return v;
  };
  const int64_t start = bound(1, 0);
  const int64_t end = std::min(bound(2, size), size);
  const bool valid = start <= end;
  const size_t begin = valid ? at[static_cast<size_t>(start)] : 0;
  const std::string_view window =
      valid ? std::string_view(self.bytes).substr(begin, at[static_cast<size_t>(end)] - begin)
            : std::string_view();
  if (name == "startswith" || name == "endswith") {
    const auto matches = [&](const Value& v) {
      if (!v.is_string())
        heap_.fail(format("{}() needs a string or a tuple of strings, found {}", name, type_name(v)));
      return valid &&
             (name == "startswith" ? window.starts_with(v.text->bytes) : window.ends_with(v.text->bytes));
    };
    if (p[0].is(Kind::list) && p[0].list->kind == ListKind::tuple) {
      const auto& options = p[0].list->items;
      return Value(std::any_of(options.begin(), options.end(), matches));
    }
    return Value(matches(p[0]));
  }
  const std::string& what = p.string(0).bytes;
  if (name == "count") {
    if (!valid) return Value(int64_t{0});
    if (what.empty()) return Value(end - start + 1);
    int64_t count = 0;
    for (size_t i = window.find(what); i != std::string_view::npos; i = window.find(what, i + what.size()))
      ++count;
    return Value(count);
  }
  const bool last = name.front() == 'r';
  const size_t found = !valid ? std::string_view::npos : last ? window.rfind(what) : window.find(what);
  if (found != std::string_view::npos)
    return Value(start + static_cast<int64_t>(char_count(window.substr(0, found))));
  if (name == "index" || name == "rindex") heap_.fail("substring not found");
  return Value(int64_t{-1});
}

/// Methods that cut a string or put strings together.
Value Interpreter::string_pieces(const Text& self, std::string_view name, const CallArguments& arguments) {
  std::vector<Value> items;
  const auto list_of = [&](std::vector<Text> parts, ListKind kind = ListKind::list) {
    for (Text& part : parts) items.push_back(heap_.text(std::move(part)));
    return heap_.list(std::move(items), kind);
  };
  if (name == "split" || name == "rsplit") {
    const Params p(heap_, name, arguments, {"sep", "maxsplit"});
    const bool right = name == "rsplit";
    if (!p.has(0) || p[0].is(Kind::none)) return list_of(split_space(self, p.integer(1, -1), right));
    if (p.string(0).empty()) heap_.fail("split() needs a separator that is not empty");
    return list_of(split(self, p.string(0).bytes, p.integer(1, -1), right));
  }
  if (name == "splitlines") {
    const Params p(heap_, name, arguments, {"keepends"});
    return list_of(split_lines(self, p.flag(0, false)));
  }
  if (name == "partition" || name == "rpartition") {
    const Params p(heap_, name, arguments, {"sep"}, 1);
    if (p.string(0).empty()) heap_.fail("partition() needs a separator that is not empty");
    const bool right = name == "rpartition";
    std::vector<Text> parts = split(self, p.string(0).bytes, 1, right);
    if (parts.size() == 1) {
      parts.insert(right ? parts.begin() : parts.end(), 2, Text());
    } else {
      const size_t cut = parts[0].size();
      parts.insert(parts.begin() + 1, self.slice(cut, cut + p.string(0).size()));
    }
    return list_of(std::move(parts), ListKind::tuple);
  }
  if (name == "join") {
    const Params p(heap_, name, arguments, {"iterable"}, 1);
    if (p[0].is(Kind::undefined)) return heap_.text(Text());
    return heap_.text(joined(self, iterate(heap_, p[0]), true));
  }
  // center, ljust, rjust, zfill
  const Params p(heap_, name, arguments, {"width", "fillchar"}, 1);
  Text fill(name == "zfill" ? "0" : " ", from_template);
  if (p.has(1)) fill = p.string(1);
  if (char_count(fill.bytes) != 1) heap_.fail("the fill must be one character");
  const int64_t width = std::max<int64_t>(p.integer(0, 0), 0);
  const int64_t missing = width - static_cast<int64_t>(char_count(self.bytes));
  if (missing <= 0) return heap_.text(self);
  int64_t left = name == "ljust" ? 0 : missing;
  if (name == "center") left = missing / 2 + (missing & width & 1);
  const Text front = *repeat(Heap::borrow(fill), left).text;
  Text text = front;
  const bool sign = name == "zfill" && (self.bytes.starts_with('-') || self.bytes.starts_with('+'));
  if (sign) text = self.slice(0, 1);
  if (sign) text.append(front);
  text.append(self, sign ? 1 : 0, self.size());
  text.append(*repeat(Heap::borrow(fill), missing - left).text);
  return heap_.text(std::move(text));
}

Value Interpreter::list_method(const List& self, std::string_view name, const CallArguments& arguments) {
  if (name == "copy") {
    const Params p(heap_, name, arguments, {});
    heap_.reserve(self.items.size() * sizeof(Value));
    return heap_.list(self.items, self.kind);
  }
  const Params p(heap_, name, arguments, {"value"}, 1);
  int64_t count = 0;
  for (size_t i = 0; i < self.items.size(); ++i) {
    if (!equal(heap_, self.items[i], p[0])) continue;
    if (name == "index") return Value(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") heap_.fail("the value is not in the list");
  return Value(count);
}

Value Interpreter::dict_method(const Value& self, std::string_view name, const CallArguments& arguments) {
  const Dict& dict = *self.dict;
  if (name == "get") {
    const Params p(heap_, name, arguments, {"key", "default"}, 1);
    if (!arguments.named.empty()) heap_.fail("get() takes no named arguments");
    const Value* found = find(heap_, dict, p[0]);
    return found ? *found : p.has(1) ? p[1] : Value::none();
  }
  const Params p(heap_, name, arguments, {});
  heap_.reserve(dict.items.size() * 2 * sizeof(Value));
  if (name == "copy") return heap_.dict(dict.items, dict.message);
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    items.push_back(name == "keys"     ? key
                    : name == "values" ? value
                                       : heap_.list({key, value}, ListKind::tuple));
  }
  return heap_.list(std::move(items), name == "keys"     ? ListKind::keys
                                      : name == "values" ? ListKind::values
                                                         : ListKind::items);
}

Value Interpreter::loop_method(Loop& self, std::string_view name, const CallArguments& arguments) {
  if (!arguments.named.empty()) heap_.fail(format("{}() takes no named arguments", name));
  const std::vector<Value>& values = arguments.positional;
  if (name == "cycle") {
    if (values.empty()) heap_.fail("cycle() needs at least one value");
    return values[self.index % values.size()];
  }
  const Value now = heap_.list(values, ListKind::tuple);
  const bool changed = !self.changed_called || !equal(heap_, self.last_changed, now);
  self.changed_called = true;
  self.last_changed = now;
  return Value(changed);
}

}  // namespace deltatune::jinja
