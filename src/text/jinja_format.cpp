// `pattern % values` and `pattern.format(...)`, the parts that templates use.
//
// printf style: %% %s %r %d %i %u %c %x %X %o %f %F %e %E %g %G with flags, width, precision and %(name)s.
// brace style: {} {0} {name} {0.attribute} {0[key]} with !s !r and
// [[fill]align][sign][0][width][,][.precision][type] where type is s d x X o b f F e E g G %. Literal text
// and inserted strings keep their origin; numbers are content. Source: Python documentation, "printf-style
// String Formatting" and "Format Specification Mini-Language".
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/format.h"
#include "text/jinja_interpreter.h"

namespace deltatune::jinja {
namespace {

struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool zero = false, comma = false, alternate = false;
  int width = 0;
  int precision = -1;
  char type = '\0';
};

constexpr int max_field = 1000;

int read_number(std::string_view text, size_t& at) {
  int number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    number = std::min(number * 10 + (text[at] - '0'), max_field + 1);
    ++at;
  }
  return number;
}

std::string digits_of(double value, char type, int precision) {
  const char pattern[] = {'%', '.', '*', type, '\0'};
  std::array<char, 2048> buffer{};
  const int n = std::snprintf(buffer.data(), buffer.size(), pattern, precision, value);
  return std::string(buffer.data(), static_cast<size_t>(std::clamp(n, 0, 2047)));
}

std::string integer_digits(uint64_t value, char type) {
  const uint64_t base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  // A pointer, not an index into the conditional: g++ 12 under UBSan reads a copy that it never wrote.
  const char* const alphabet = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), alphabet[value % base]);
    value /= base;
  } while (value > 0);
  return text;
}

void insert_commas(std::string& digits) {
  size_t end = 0;
  while (end < digits.size() && digits[end] >= '0' && digits[end] <= '9') ++end;
  for (size_t i = end; i > 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
}

/// Pads `body` (with `sign` in front of it) to the width of the spec.
Text pad(const Spec& spec, const std::string& sign, Text body, char default_align) {
  const size_t size = sign.size() + char_count(body.bytes);
  const size_t missing = static_cast<size_t>(spec.width) > size ? static_cast<size_t>(spec.width) - size : 0;
  const char align = spec.align ? spec.align : spec.zero ? '=' : default_align;
  const std::string& fill = spec.zero && !spec.align ? std::string("0") : spec.fill;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  Text text;
  if (align == '=') text.append(sign, from_content);
  for (size_t i = 0; i < left; ++i) text.append(fill, from_content);
  if (align != '=') text.append(sign, from_content);
  text.append(body);
  for (size_t i = left; i < missing; ++i) text.append(fill, from_content);
  return text;
}

Text format_number(Heap& heap, const Value& value, Spec spec) {
  const bool percent = spec.type == '%';
  const bool as_float = value.is(Kind::floating) ||
                        (spec.type && std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos);
  std::string digits;
  bool negative = false;
  if (as_float) {
    if (spec.type && std::string_view("fFeEgG%").find(spec.type) == std::string_view::npos) {
      heap.fail(format("the format '{}' does not fit a float", spec.type));
    }
    double d = value.as_double();
    negative = std::signbit(d) && !std::isnan(d);
    d = std::abs(d);
    if (!std::isfinite(d)) {
      digits = std::isnan(d) ? "nan" : "inf";
    } else if (!spec.type && spec.precision < 0) {
      digits = float_repr(d);
    } else if (!spec.type) {
      heap.unsupported("a precision without a type for a float");
    } else {
      digits = digits_of(percent ? d * 100 : d, percent ? 'f' : spec.type,
                         spec.precision < 0 ? 6 : spec.precision);
      if (percent) digits += "%";
    }
  } else {
    const int64_t i = value.as_int();
    negative = i < 0;
    digits = integer_digits(negative ? uint64_t{0} - static_cast<uint64_t>(i) : static_cast<uint64_t>(i),
                            spec.type);
    if (spec.precision > 0 && digits.size() < static_cast<size_t>(spec.precision)) {
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    }
  }
  if (spec.comma) insert_commas(digits);
  if (spec.comma && spec.zero && spec.width) heap.unsupported("zero padding together with ','");
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  heap.reserve(2 * (digits.size() + static_cast<size_t>(spec.width)));
  return pad(spec, sign, Text(digits, from_content), '>');
}

Text format_string(const Spec& spec, Text text, char default_align) {
  if (spec.precision >= 0) {
    const std::vector<size_t> at = char_offsets(text.bytes);
    text = text.slice(0, at[std::min(static_cast<size_t>(spec.precision), at.size() - 1)]);
  }
  return pad(spec, "", std::move(text), default_align);
}

}  // namespace

Value Interpreter::printf_format(const Text& pattern, const Value& arguments) {
  if (pattern.markup) heap_.unsupported("% on a string that went through `safe` or `escape`");
  const bool tuple = arguments.is(Kind::list) && arguments.list->kind == ListKind::tuple;
  const std::vector<Value> values = tuple ? arguments.list->items : std::vector<Value>{arguments};
  size_t next = 0;
  bool named = false;
  const std::string_view text = pattern.bytes;
  Text result;
  for (size_t at = 0; at < text.size();) {
    const size_t percent = std::min(text.find('%', at), text.size());
    result.append(pattern, at, percent);
    at = percent + 1;
    if (percent >= text.size()) break;
    Value value;
    bool has_value = false;
    if (at < text.size() && text[at] == '(') {
      const size_t close = text.find(')', at);
      if (close == std::string_view::npos || !arguments.is(Kind::dict)) heap_.fail("%(name) needs a mapping");
      const Value* found = find(*arguments.dict, text.substr(at + 1, close - at - 1));
      if (!found) heap_.fail(format("the mapping has no key '{}'", text.substr(at + 1, close - at - 1)));
      value = *found;
      has_value = named = true;
      at = close + 1;
    }
    Spec spec;
    for (; at < text.size() && std::string_view("-+ 0#").find(text[at]) != std::string_view::npos; ++at) {
      if (text[at] == '-') spec.align = '<';
      if (text[at] == '0') spec.zero = true;
      if (text[at] == '+' || (text[at] == ' ' && spec.sign != '+')) spec.sign = text[at];
      if (text[at] == '#') heap_.unsupported("the # flag of %");
    }
    spec.width = read_number(text, at);
    if (at < text.size() && text[at] == '.') spec.precision = read_number(text, ++at);
    if (spec.width > max_field || spec.precision > max_field) heap_.unsupported("a field wider than 1000");
    if (at >= text.size()) heap_.fail("the format ends inside a % field");
    spec.type = text[at++];
    if (spec.type == '*') heap_.unsupported("a width from the arguments (%*)");
    if (spec.type == '%') {
      result.append(pattern, at - 1, at);
      continue;
    }
    if (!has_value) {
      if (next >= values.size()) heap_.fail("not enough values for the format");
      value = values[next++];
    }
    if (spec.align == '<') spec.zero = false;
    if (spec.type == 's' || spec.type == 'r') {
      Text inserted = spec.type == 's' ? string_of(value) : Text(repr(heap_, value), from_content);
      spec.zero = false;
      heap_.reserve(2 * static_cast<size_t>(spec.width));
      result.append(format_string(spec, std::move(inserted), '>'));
      continue;
    }
    if (std::string_view("diuxXofFeEgG").find(spec.type) == std::string_view::npos) {
      heap_.unsupported(format("the field %{}", spec.type));
    }
    if (!value.is_number()) heap_.fail(format("%{} needs a number, found {}", spec.type, type_name(value)));
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    if (value.is(Kind::floating) && spec.type == 'd') {
      if (!(std::abs(value.floating) < 9.2e18)) heap_.fail("the number does not fit an integer");
      value = Value(static_cast<int64_t>(value.floating));
    }
    result.append(format_number(heap_, value, spec));
  }
  if (!named && next < values.size() && (tuple || !(arguments.is(Kind::dict) || arguments.is(Kind::list)))) {
    heap_.fail("not all values were used by the format");
  }
  return heap_.text(std::move(result));
}

Text Interpreter::format_field(const Value& value, std::string_view text) {
  if (text.empty()) return string_of(value);
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>=^").find(text[i]) != std::string_view::npos;
  };
  size_t after_fill = 0;
  next_char(text, after_fill);
  if (is_align(after_fill)) {
    spec.fill = text.substr(0, after_fill);
    spec.align = text[after_fill];
    at = after_fill + 1;
  } else if (is_align(0)) {
    spec.align = text[at++];
  }
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  if (at < text.size() && text[at] == '0') {
    spec.zero = true;
    ++at;
  }
  spec.width = read_number(text, at);
  if (at < text.size() && text[at] == ',') {
    spec.comma = true;
    ++at;
  }
  if (at < text.size() && text[at] == '.') spec.precision = read_number(text, ++at);
  if (at < text.size()) spec.type = text[at++];
  const bool known =
      !spec.type || std::string_view("sdxXobfFeEgG%").find(spec.type) != std::string_view::npos;
  if (at < text.size() || !known || spec.width > max_field || spec.precision > max_field) {
    heap_.unsupported(format("the format '{}'", text));
  }
  if (value.is_string()) {
    if (spec.type && spec.type != 's') heap_.fail(format("the format '{}' does not fit a string", text));
    if (spec.zero || spec.comma || spec.align == '=' || spec.sign != '-')
      heap_.unsupported(format("the format '{}' of a string", text));
    heap_.reserve(2 * static_cast<size_t>(spec.width));
    return format_string(spec, string_of(value), '<');
  }
  if (!value.is_number() || value.is(Kind::boolean)) {
    heap_.unsupported(format("the format '{}' of a value of type {}", text, type_name(value)));
  }
  if (spec.type == 's' ||
      (spec.precision >= 0 && value.is_int() &&
       (!spec.type || std::string_view("dxXob").find(spec.type) != std::string_view::npos))) {
    heap_.fail(format("the format '{}' does not fit a number", text));
  }
  return format_number(heap_, value, spec);
}

Value Interpreter::brace_format(const Text& pattern, const CallArguments& arguments) {
  if (pattern.markup) heap_.unsupported("format on a string that went through `safe` or `escape`");
  const std::string_view text = pattern.bytes;
  Text result;
  size_t next = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      const size_t end = std::min(text.find_first_of("{}", at), text.size());
      result.append(pattern, at, end);
      at = end;
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == c) {
      result.append(pattern, at, at + 1);
      at += 2;
      continue;
    }
    const size_t close = text.find('}', at);
    if (c == '}' || close == std::string_view::npos) heap_.fail("a single brace in a format string");
    const std::string_view field = text.substr(at + 1, close - at - 1);
    if (field.find('{') != std::string_view::npos) heap_.unsupported("a format inside a format");
    at = close + 1;
    const size_t spec_at = std::min(field.find(':'), field.size());
    std::string_view name = field.substr(0, spec_at);
    char conversion = '\0';
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      conversion = name.back();
      name.remove_suffix(2);
    }
    if (name.find_first_of(".[!") != std::string_view::npos)
      heap_.unsupported("attributes inside a format field");
    Value value;
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) {
      size_t digit = 0;
      const size_t index = name.empty() ? next++ : static_cast<size_t>(read_number(name, digit));
      if (!name.empty() && digit != name.size()) heap_.fail(format("the format has no field '{}'", name));
      if (index >= arguments.positional.size()) heap_.fail("not enough values for the format");
      value = arguments.positional[index];
    } else {
      const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                      [&](const auto& item) { return item.first == name; });
      if (found == arguments.named.end()) heap_.fail(format("the format needs a value named '{}'", name));
      value = found->second;
    }
    if (conversion && conversion != 's' && conversion != 'r')
      heap_.unsupported("this conversion in a format");
    if (conversion)
      value = heap_.text(conversion == 's' ? string_of(value) : Text(repr(heap_, value), from_content));
    result.append(
        format_field(value, spec_at < field.size() ? field.substr(spec_at + 1) : std::string_view()));
  }
  return heap_.text(std::move(result));
}

}  // namespace deltatune::jinja
