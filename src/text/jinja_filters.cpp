// Filters on text and single values; those on sequences are in jinja_filters_seq.cpp.
//
// A filter either keeps the origin of every character it passes on (trim, replace, join, indent, upper ...)
// or marks its whole result as content (tojson, numbers). `tojson` is the one of transformers: json.dumps
// without HTML escapes. Filters that jinja2 has and this file has not are errors.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/format.h"
#include "base/suggest.h"
#include "text/jinja_interpreter.h"

namespace deltatune::jinja {

Value Interpreter::filter(std::string_view name, const Value& input, const CallArguments& arguments) {
  heap_.charge(1);
  if (input.is_string()) heap_.charge(input.text->size());
  Value result;
  if (text_filter(name, input, arguments, result)) return result;
  if (number_filter(name, input, arguments, result)) return result;
  if (sequence_filter(name, input, arguments, result)) return result;
  if (sorting_filter(name, input, arguments, result)) return result;
  if (name == "default" || name == "d") {
    const Params p(heap_, name, arguments, {"default_value", "boolean"});
    const bool missing = input.is(Kind::undefined) || (p.flag(1, false) && !truth(input));
    if (!missing) return input;
    return p.has(0) ? p[0] : heap_.text(Text());
  }
  if (name == "tojson") return filter_tojson(input, arguments);
  if (name == "attr") {
    const Params p(heap_, name, arguments, {"name"}, 1);
    if (input.is(Kind::undefined)) heap_.fail_undefined(input);
    if (python_attribute(input, p.string(0).bytes, result)) return result;
    return heap_.undefined(
        format("a value of type {} has no attribute '{}'", type_name(input), p.string(0).bytes));
  }
  static const std::vector<std::string> known = {
      "abs",      "attr",       "batch",  "capitalize", "center",  "count",   "d",       "default",
      "dictsort", "e",          "escape", "first",      "float",   "format",  "groupby", "indent",
      "int",      "items",      "join",   "last",       "length",  "list",    "lower",   "map",
      "max",      "min",        "reject", "rejectattr", "replace", "reverse", "round",   "safe",
      "select",   "selectattr", "slice",  "sort",       "string",  "sum",     "title",   "tojson",
      "trim",     "truncate",   "unique", "upper"};
  const std::string near = nearest(name, known);
  heap_.fail(format("unknown or unsupported filter '{}'", name),
             near.empty() ? "this engine knows the part of Jinja that chat templates use: rewrite this line"
                          : format("did you mean '{}'?", near));
}

bool Interpreter::text_filter(std::string_view name, const Value& input, const CallArguments& arguments,
                              Value& result) {
  const auto plain = [&] { const Params p(heap_, name, arguments, {}); };
  if (name == "trim") {
    const Params p(heap_, name, arguments, {"chars"});
    const std::string* chars = p.has(0) && !p[0].is(Kind::none) ? &p.string(0).bytes : nullptr;
    result = heap_.text(strip(string_of(input), chars, true, true));
  } else if (name == "string") {
    plain();
    result = heap_.text(string_of(input));
  } else if (name == "upper" || name == "lower" || name == "capitalize") {
    plain();
    const Case how = name == "upper" ? Case::upper : name == "lower" ? Case::lower : Case::capitalize;
    result = heap_.text(cased(string_of(input), how));
  } else if (name == "title") {
    plain();
    // Words start behind white space and any of - ( { [ <, unlike str.title.
    const Text text = string_of(input);
    Text titled = cased(text, Case::lower);
    bool start = true;
    for (char& c : titled.bytes) {
      if (start && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
      start = is_space(static_cast<unsigned char>(c)) ||
              std::string_view("-({[<").find(c) != std::string_view::npos;
    }
    result = heap_.text(std::move(titled));
  } else if (name == "safe") {
    plain();
    Text text = string_of(input);
    text.markup = true;
    result = heap_.text(std::move(text));
  } else if (name == "escape" || name == "e") {
    plain();
    const Text text = string_of(input);
    result = heap_.text(text.markup ? text : escape(text));
  } else if (name == "replace") {
    const Params p(heap_, name, arguments, {"old", "new", "count"}, 2);
    const Text text = string_of(input);
    const Text with = string_of(p[1]);
    heap_.charge(char_count(text.bytes) * (with.size() + 1));
    const bool limited = p.has(2) && !p[2].is(Kind::none);
    Text replaced = replace(text, string_of(p[0]).bytes, with, limited ? p.integer(2, -1) : -1);
    replaced.markup = false;  // the filter works on str(text)
    result = heap_.text(std::move(replaced));
  } else if (name == "center") {
    const Params p(heap_, name, arguments, {"width"});
    CallArguments width;
    width.positional.emplace_back(p.integer(0, 80));
    result = string_method(string_of(input), "center", width);
  } else if (name == "format") {
    if (!arguments.named.empty() && !arguments.positional.empty()) {
      heap_.fail("format takes positional or named values, not both");
    }
    result = printf_format(string_of(input), arguments.named.empty()
                                                 ? heap_.list(arguments.positional, ListKind::tuple)
                                                 : make_dict(arguments));
  } else if (name == "indent") {
    result = filter_indent(input, arguments);
  } else if (name == "truncate") {
    result = filter_truncate(input, arguments);
  } else if (name == "join") {
    const Params p(heap_, name, arguments, {"d", "attribute"});
    std::vector<Value> items = iterate(heap_, input);
    if (p.has(1) && !p[1].is(Kind::none)) {
      for (Value& item : items) item = by_path(item, p[1], false);
    }
    Text separator = p.has(0) ? string_of(p[0]) : Text();
    separator.markup = false;
    Text text = joined(separator, items, false);
    text.markup = false;
    result = heap_.text(std::move(text));
  } else {
    return false;
  }
  return true;
}

Value Interpreter::filter_indent(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "indent", arguments, {"width", "first", "blank"});
  if (!input.is_string()) heap_.fail(format("indent needs a string, found {}", type_name(input)));
  if (input.text->markup) heap_.unsupported("indent of a string that went through `safe` or `escape`");
  Text indention(std::string(4, ' '), from_template);
  if (p.has(0)) {
    if (p[0].is_string()) {
      indention = *p[0].text;
    } else {
      const Text space(" ", from_template);
      indention = *repeat(Heap::borrow(space), p.integer(0, 4)).text;
    }
  }
  Text body = *input.text;
  body.append("\n", from_template);
  const std::vector<Text> lines = split_lines(body, false);
  heap_.charge(lines.size() * (indention.size() + 1));
  Text result;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i) result.append("\n", from_template);
    const bool indented = i == 0 ? p.flag(1, false) : p.flag(2, false) || !lines[i].empty();
    if (indented) result.append(indention);
    result.append(lines[i]);
  }
  return heap_.text(std::move(result));
}

Value Interpreter::filter_truncate(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "truncate", arguments, {"length", "killwords", "end", "leeway"});
  if (!input.is_string()) heap_.fail(format("truncate needs a string, found {}", type_name(input)));
  const int64_t limit = p.integer(0, 255);
  const Text end = p.has(2) ? p.string(2) : Text("...", from_template);
  const int64_t leeway = p.has(3) && !p[3].is(Kind::none) ? p.integer(3, 5) : 5;
  const auto end_size = static_cast<int64_t>(char_count(end.bytes));
  if (limit < end_size || leeway < 0) heap_.fail("truncate needs a length of at least that of its end mark");
  const std::vector<size_t> at = char_offsets(input.text->bytes);
  const auto size = static_cast<int64_t>(at.size()) - 1;
  if (size <= limit || size - limit <= leeway) return input;
  Text cut = input.text->slice(0, at[static_cast<size_t>(limit - end_size)]);
  if (!p.flag(1, false)) cut = split(cut, " ", 1, true)[0];
  cut.append(end);
  return heap_.text(std::move(cut));
}

bool Interpreter::number_filter(std::string_view name, const Value& input, const CallArguments& arguments,
                                Value& result) {
  if (name == "int") {
    result = filter_int(input, arguments);
  } else if (name == "float") {
    const Params p(heap_, name, arguments, {"default"});
    result = p.has(0) ? p[0] : Value(0.0);
    if (input.is(Kind::undefined)) heap_.fail_undefined(input);
    if (input.is_number()) result = Value(input.as_double());
    if (input.is(Kind::big_integer)) heap_.unsupported("float of an integer beyond 64 bits");
    if (input.is_string()) {
      const std::string text = strip(*input.text, nullptr, true, true).bytes;
      double value = 0;
      const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
      const auto parsed = std::from_chars(begin, text.data() + text.size(), value);
      if (text.find('_') != std::string::npos) heap_.unsupported("float of a text with underscores");
      if (parsed.ptr == text.data() + text.size() && !text.starts_with("+-")) {
        if (parsed.ec == std::errc::result_out_of_range) heap_.unsupported("float of a number out of range");
        if (parsed.ec == std::errc()) result = Value(value);
      }
    }
  } else if (name == "abs") {
    const Params p(heap_, name, arguments, {});
    if (input.is(Kind::undefined)) heap_.fail_undefined(input);
    if (!input.is_number()) heap_.fail(format("abs needs a number, found {}", type_name(input)));
    result = input.is(Kind::floating) ? Value(std::abs(input.floating))
             : input.as_int() < 0     ? integer_arithmetic("-", 0, input.as_int())
                                      : Value(input.as_int());
  } else if (name == "round") {
    result = filter_round(input, arguments);
  } else {
    return false;
  }
  return true;
}

Value Interpreter::filter_int(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "int", arguments, {"default", "base"});
  const Value otherwise = p.has(0) ? p[0] : Value(int64_t{0});
  if (input.is(Kind::undefined)) heap_.fail_undefined(input);
  if (input.is_int()) return Value(input.as_int());
  if (input.is(Kind::big_integer)) return input;
  const auto truncated = [&](double d) {
    if (!std::isfinite(d)) return otherwise;
    if (std::abs(d) >= 9.2e18) heap_.unsupported("an integer beyond 64 bits");
    return Value(static_cast<int64_t>(d));
  };
  if (input.is(Kind::floating)) return truncated(input.floating);
  if (!input.is_string()) return otherwise;
  const int64_t base = p.integer(1, 10);
  if (base != 10 && base != 16 && base != 8 && base != 2)
    heap_.unsupported("int with a base other than 2, 8, 10, 16");
  std::string text = strip(*input.text, nullptr, true, true).bytes;
  if (text.find('_') != std::string::npos) heap_.unsupported("int of a text with underscores");
  const bool ascii =
      std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  if (!ascii) heap_.unsupported("int of text that is not ASCII");
  const bool negative = text.starts_with('-');
  std::string digits = text.substr(negative || text.starts_with('+') ? 1 : 0);
  const char mark = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
  if (mark && digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == mark) digits = digits.substr(2);
  int64_t value = 0;
  if (negative) digits.insert(0, "-");
  const bool sign_only_once = digits.find_last_of("+-") == (negative ? 0 : std::string::npos);
  const auto parsed =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (sign_only_once && parsed.ptr == digits.data() + digits.size()) {
    if (parsed.ec == std::errc()) return Value(value);
    if (parsed.ec == std::errc::result_out_of_range) heap_.unsupported("an integer beyond 64 bits");
  }
  CallArguments nan;
  nan.positional.emplace_back(std::numeric_limits<double>::quiet_NaN());
  Value number;
  number_filter("float", input, nan, number);
  return truncated(number.floating);
}

Value Interpreter::filter_round(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "round", arguments, {"precision", "method"});
  const int64_t precision = p.integer(0, 0);
  const std::string method = p.has(1) ? p.string(1).bytes : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    heap_.fail("round knows common, ceil and floor");
  if (input.is(Kind::undefined)) heap_.fail_undefined(input);
  if (!input.is_number()) heap_.fail(format("round needs a number, found {}", type_name(input)));
  if (precision < 0 || precision > 300) heap_.unsupported("round with a negative or large precision");
  const double value = input.as_double();
  if (method == "common") {
    if (input.is_int()) return Value(input.as_int());
    if (!std::isfinite(value)) return Value(value);
    const std::string digits = format("{:.{}f}", value, static_cast<int>(precision));  // ties to even
    double rounded = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), rounded);
    return Value(rounded);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value * scale;
  if (!std::isfinite(scaled)) heap_.fail("round needs a finite number");
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale + 0.0);
}

Value Interpreter::filter_tojson(const Value& input, const CallArguments& arguments) {
  const Params p(heap_, "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = p.flag(0, false);
  style.sort_keys = p.flag(3, false);
  if (p.has(1) && !p[1].is(Kind::none)) {
    style.pretty = true;
    style.item_separator = ",";
    if (p[1].is_string()) {
      style.indent = p[1].text->bytes;
    } else {
      const int64_t width = p.integer(1, 0);
      if (width > 1000) heap_.unsupported("tojson with an indent over 1000");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (p.has(2) && !p[2].is(Kind::none)) {
    const std::vector<Value> parts = iterate(heap_, p[2]);
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string()) {
      heap_.fail("tojson: separators needs two strings");
    }
    style.item_separator = parts[0].text->bytes;
    style.key_separator = parts[1].text->bytes;
  }
  return heap_.text(to_json(heap_, input, style), from_content);
}

}  // namespace deltatune::jinja
