// str(), repr() and json.dumps of template values, as Python 3 prints them.
//
// repr of strings escapes control, format, private-use and separator characters like Python; unassigned code
// points, which depend on the Unicode version, are printed as they are.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/format.h"
#include "text/jinja_value.h"

namespace deltatune::jinja {
namespace {

bool printable(char32_t c) {
  static constexpr std::pair<char32_t, char32_t> hidden[] = {
      {0x00, 0x1F},       {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},     {0x61C, 0x61C},
      {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},     {0x8E2, 0x8E2},     {0x1680, 0x1680},
      {0x180E, 0x180E},   {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},   {0x3000, 0x3000},
      {0xD800, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},   {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD},
      {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE007F},
      {0xF0000, 0x10FFFF}};
  return std::none_of(std::begin(hidden), std::end(hidden),
                      [&](const auto& range) { return c >= range.first && c <= range.second; });
}

void append_repr(std::string& out, std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = single ? '"' : '\'';
  out.push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_char(text, at);
    if (c == '\\' || c == static_cast<unsigned char>(quote)) {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (printable(c)) {
      out += text.substr(begin, at - begin);
    } else {
      const auto code = static_cast<uint32_t>(c);
      out += c < 0x100     ? format("\\x{:02x}", code)
             : c < 0x10000 ? format("\\u{:04x}", code)
                           : format("\\U{:08x}", code);
    }
  }
  out.push_back(quote);
}

void append_json(std::string& out, std::string_view text, bool ascii) {
  out.push_back('"');
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_char(text, at);
    const auto code = static_cast<uint32_t>(c);
    static constexpr std::string_view plain = "\"\\\n\r\t\b\f";
    static constexpr std::string_view names = "\"\\nrtbf";
    const size_t simple = c < 0x80 ? plain.find(static_cast<char>(c)) : std::string_view::npos;
    if (simple != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(names[simple]);
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
      if (c == 0x7F) {
        out.push_back('\x7F');
      } else {
        out += format("\\u{:04x}", code);
      }
    } else if (ascii && c >= 0x10000) {
      out += format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                    0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
      out += text.substr(begin, at - begin);
    }
  }
  out.push_back('"');
}

class Printer {
 public:
  explicit Printer(Heap& heap) : heap_(heap) {}

  void print(const Value& v) {
    const size_t before = out.size();
    heap_.charge(1);
    switch (v.kind) {
      case Kind::undefined:
        out += "Undefined";
        break;
      case Kind::none:
        out += "None";
        break;
      case Kind::boolean:
        out += v.boolean ? "True" : "False";
        break;
      case Kind::integer:
        out += std::to_string(v.integer);
        break;
      case Kind::big_integer:
        out += v.text->bytes;
        break;
      case Kind::floating:
        out += float_repr(v.floating);
        break;
      case Kind::string:
        if (v.text->markup) heap_.unsupported("repr of a string that went through `safe` or `escape`");
        append_repr(out, v.text->bytes);
        break;
      case Kind::list:
        print_list(*v.list);
        break;
      case Kind::dict:
        print_dict(*v.dict);
        break;
      default:
        heap_.unsupported(format("printing a value of type {}", type_name(v)));
    }
    if (!v.is(Kind::list) && !v.is(Kind::dict)) heap_.reserve(out.size() - before);
  }

  std::string out;

 private:
  void print_items(const std::vector<Value>& items) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) out += ", ";
      print(items[i]);
    }
  }

  void print_list(const List& list) {
    switch (list.kind) {
      case ListKind::iterator:
        heap_.unsupported("printing a generator (put `| list` behind the filter)");
      case ListKind::range:
        out += format("range({}, {}", list.range_begin, list.range_end);
        out += list.range_step == 1 ? ")" : format(", {})", list.range_step);
        return;
      case ListKind::tuple:
        out += "(";
        print_items(list.items);
        out += list.items.size() == 1 ? ",)" : ")";
        return;
      default:
        break;
    }
    const bool view = list.kind != ListKind::list;
    if (view)
      out += list.kind == ListKind::keys     ? "dict_keys("
             : list.kind == ListKind::values ? "dict_values("
                                             : "dict_items(";
    out += "[";
    print_items(list.items);
    out += view ? "])" : "]";
  }

  void print_dict(const Dict& dict) {
    out += "{";
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i) out += ", ";
      print(dict.items[i].first);
      out += ": ";
      print(dict.items[i].second);
    }
    out += "}";
  }

  Heap& heap_;
};

class JsonPrinter {
 public:
  JsonPrinter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}

  void print(const Value& v, int depth) {
    const size_t before = out.size();
    heap_.charge(1);
    switch (v.kind) {
      case Kind::none:
        out += "null";
        break;
      case Kind::boolean:
        out += v.boolean ? "true" : "false";
        break;
      case Kind::integer:
        out += std::to_string(v.integer);
        break;
      case Kind::big_integer:
        out += v.text->bytes;
        break;
      case Kind::floating:
        print_float(v.floating);
        break;
      case Kind::string:
        append_json(out, v.text->bytes, style_.ensure_ascii);
        break;
      case Kind::list:
        if (v.list->kind > ListKind::tuple) refuse(v);
        print_list(v.list->items, depth);
        return;
      case Kind::dict:
        print_dict(*v.dict, depth);
        return;
      default:
        refuse(v);
    }
    heap_.reserve(out.size() - before);
  }

  std::string out;

 private:
  [[noreturn]] void refuse(const Value& v) const {
    heap_.fail(format("a value of type {} has no JSON form", type_name(v)));
  }

  void print_float(double d) {
    out += std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : float_repr(d);
  }

  void newline(int depth) {
    if (!style_.pretty) return;
    out += "\n";
    for (int i = 0; i < depth; ++i) out += style_.indent;
    heap_.reserve(1 + static_cast<uint64_t>(depth) * style_.indent.size());
  }

  void print_list(const std::vector<Value>& items, int depth) {
    out += "[";
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) out += style_.item_separator;
      newline(depth + 1);
      print(items[i], depth + 1);
    }
    if (!items.empty()) newline(depth);
    out += "]";
  }

  std::string key_text(const Value& key) const {
    switch (key.kind) {
      case Kind::string:
        return key.text->bytes;
      case Kind::none:
        return "null";
      case Kind::boolean:
        return key.boolean ? "true" : "false";
      case Kind::integer:
        return std::to_string(key.integer);
      case Kind::big_integer:
        return key.text->bytes;
      case Kind::floating:
        return float_repr(key.floating);
      default:
        heap_.fail(format("a {} cannot be a key in JSON", type_name(key)));
    }
  }

  void print_dict(const Dict& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> items;
    heap_.reserve(dict.items.size() * sizeof(void*));
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return less(heap_, a->first, b->first); });
    }
    out += "{";
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) out += style_.item_separator;
      newline(depth + 1);
      append_json(out, key_text(items[i]->first), style_.ensure_ascii);
      out += style_.key_separator;
      print(items[i]->second, depth + 1);
    }
    if (!items.empty()) newline(depth);
    out += "}";
  }

  Heap& heap_;
  const JsonStyle& style_;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  std::string digits;
  for (char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  std::string out = text[0] == '-' ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string repr(Heap& heap, const Value& value) {
  Printer printer(heap);
  printer.print(value);
  return std::move(printer.out);
}

Text to_text(Heap& heap, const Value& value) {
  if (value.is_string()) {
    heap.reserve(2 * value.text->size());
    return *value.text;
  }
  if (value.is(Kind::undefined)) return {};
  return Text(repr(heap, value), from_content);
}

std::string to_json(Heap& heap, const Value& value, const JsonStyle& style) {
  JsonPrinter printer(heap, style);
  printer.print(value, 0);
  return std::move(printer.out);
}

}  // namespace deltatune::jinja
