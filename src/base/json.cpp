// json::Value on top of nlohmann-json's SAX parser, so that order, number spelling and duplicate keys are
// ours.
#include "base/json.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "base/json_stream.h"

namespace deltatune::json {
namespace {

constexpr size_t max_depth = 200;

const char* name_of(Type type) {
  switch (type) {
    case Type::null:
      return "null";
    case Type::boolean:
      return "boolean";
    case Type::integer:
      return "integer";
    case Type::floating:
      return "number";
    case Type::string:
      return "string";
    case Type::array:
      return "array";
    case Type::object:
      return "object";
  }
  return "?";
}

[[noreturn]] void wrong_type(const char* wanted, Type found) {
  throw Error(ErrorKind::data, std::string("expected a JSON ") + wanted + ", found " + name_of(found));
}

// Builds the tree; every callback returns false to stop, with `problem` saying why.
struct Builder : nlohmann::json_sax<nlohmann::json> {
  Value root;
  std::vector<Value> open;                            // containers not closed yet
  std::vector<std::string> keys;                      // the pending key of each open object ("" for arrays)
  std::vector<std::unordered_set<std::string>> seen;  // keys of each open object
  std::string problem;
  size_t position = 0;

  virtual bool put(Value value) {
    if (open.empty()) {
      root = std::move(value);
    } else if (open.back().is_array()) {
      open.back().as_array().push_back(std::move(value));
    } else {
      open.back().as_object().emplace_back(std::move(keys.back()), std::move(value));
    }
    return true;
  }
  virtual bool start(Value container) {
    if (open.size() >= max_depth) {
      problem = "nested deeper than " + std::to_string(max_depth) + " levels";
      return false;
    }
    open.push_back(std::move(container));
    keys.emplace_back();
    seen.emplace_back();
    return true;
  }
  bool finish() {
    Value done = std::move(open.back());
    open.pop_back();
    keys.pop_back();
    seen.pop_back();
    return put(std::move(done));
  }

  bool null() override { return put(Value()); }
  bool boolean(bool b) override { return put(Value(b)); }
  bool number_integer(int64_t i) override { return put(Value(i)); }
  bool number_unsigned(uint64_t u) override {
    if (u <= static_cast<uint64_t>(INT64_MAX)) return put(Value(static_cast<int64_t>(u)));
    return put(Value(Float{static_cast<double>(u), std::to_string(u)}));
  }
  bool number_float(double d, const std::string& spelling) override { return put(Value(Float{d, spelling})); }
  bool string(std::string& s) override { return put(Value(std::move(s))); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(size_t) override { return start(Value(Object{})); }
  bool end_object() override { return finish(); }
  bool start_array(size_t) override { return start(Value(Array{})); }
  bool end_array() override { return finish(); }
  bool key(std::string& k) override {
    if (!seen.back().insert(k).second) {
      problem = "duplicate key \"" + k + "\"";
      return false;
    }
    keys.back() = k;
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& e) override {
    position = at;
    problem = e.what();
    // nlohmann's text is "[json.exception.parse_error.101] parse error at line 1, column 5: ..."; keep the
    // tail.
    if (const size_t tail = problem.find(": "); tail != std::string::npos) problem = problem.substr(tail + 2);
    return false;
  }
};

// The bytes of a reader, one after the other, counted.
class ByteSource {
 public:
  ByteSource(const ByteReader& read, size_t limit) : read_(read), limit_(limit) {}
  // Whether there is a byte at the front. Stops where an item becomes too large: the parser keeps the text of
  // what it is in.
  bool any() {
    if (at_ < held_) return true;
    if (ended_) return false;
    before_ += held_;
    at_ = 0;
    held_ = read_(piece_);
    ended_ = held_ == 0;
    if (position() - item_begin_ > limit_) too_long_ = ended_ = true;
    return !ended_;
  }
  char front() const { return piece_[at_]; }
  void drop() { ++at_; }
  void begin_item() { item_begin_ = position(); }
  size_t position() const { return before_ + at_; }
  bool too_long() const { return too_long_; }

 private:
  const ByteReader& read_;
  size_t limit_;
  char piece_[1 << 14];
  size_t held_ = 0, at_ = 0, before_ = 0, item_begin_ = 0;
  bool ended_ = false, too_long_ = false;
};

// An input iterator over it; the default one is the end.
struct ByteIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;
  ByteSource* source = nullptr;
  char operator*() const { return source->front(); }
  ByteIterator& operator++() {
    source->drop();
    return *this;
  }
  void operator++(int) { source->drop(); }
  bool at_end() const { return source == nullptr || !source->any(); }
  bool operator==(const ByteIterator& other) const { return at_end() == other.at_end(); }
};

// Hands over the items of one list of the root, and keeps nothing else.
struct ItemBuilder final : Builder {
  ItemBuilder(ByteSource& bytes, std::string_view key, const std::function<void(const Value&)>& visit,
              int64_t most_values)
      : source(bytes), wanted(key), visitor(visit), most(most_values) {}
  ByteSource& source;
  std::string_view wanted;
  const std::function<void(const Value&)>& visitor;
  int64_t most;
  int64_t values = 0, outside = 0;  // of the item, and outside of the list
  bool found = false, inside = false;

  bool count() {
    int64_t& so_far = inside ? values : outside;
    if (++so_far <= most) return true;
    problem = "more than " + std::to_string(most) + " values in one item";
    return false;
  }
  bool start(Value container) override {
    const bool list = open.size() == 1 && open[0].is_object() && container.is_array() && keys[0] == wanted;
    if (!count() || !Builder::start(std::move(container))) return false;
    if (list) found = inside = true;
    return true;
  }
  bool put(Value value) override {
    if (!count()) return false;
    if (inside && open.size() == 2) {
      visitor(value);
      values = 0;
      source.begin_item();
      return true;
    }
    if (open.size() != 1) return Builder::put(std::move(value));
    inside = false;  // a member of the root: nobody wants it
    return true;
  }
};

std::string line_and_column(std::string_view text, size_t position) {
  size_t line = 1;
  size_t column = 1;
  for (size_t i = 0; i < position && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
  }
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

void append_number(std::string& out, const Float& number) {
  if (!number.spelling.empty()) {
    out += number.spelling;
    return;
  }
  if (!std::isfinite(number.value)) {
    out += "null";
    return;
  }
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number.value).ptr;
  const std::string_view digits(text, static_cast<size_t>(end - text));
  out += digits;
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void append(std::string& out, const Value& value, int indent, int depth) {
  const auto newline = [&](int level) {
    if (indent <= 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent * level), ' ');
  };
  switch (value.type()) {
    case Type::null:
      out += "null";
      return;
    case Type::boolean:
      out += value.as_bool() ? "true" : "false";
      return;
    case Type::integer:
      out += std::to_string(value.as_integer());
      return;
    case Type::floating:
      append_number(out, value.as_float());
      return;
    case Type::string:
      out += quote(value.as_string());
      return;
    case Type::array: {
      out += '[';
      bool first = true;
      for (const Value& item : value.as_array()) {
        if (!first) out += indent > 0 ? "," : ", ";
        first = false;
        newline(depth + 1);
        append(out, item, indent, depth + 1);
      }
      if (!first) newline(depth);
      out += ']';
      return;
    }
    case Type::object: {
      out += '{';
      bool first = true;
      for (const auto& [key, item] : value.as_object()) {
        if (!first) out += indent > 0 ? "," : ", ";
        first = false;
        newline(depth + 1);
        out += quote(key);
        out += ": ";
        append(out, item, indent, depth + 1);
      }
      if (!first) newline(depth);
      out += '}';
      return;
    }
  }
}

}  // namespace

const char* Value::type_name() const {
  return name_of(type());
}

bool Value::as_bool() const {
  if (const bool* b = std::get_if<bool>(&data_)) return *b;
  wrong_type("boolean", type());
}
int64_t Value::as_integer() const {
  if (const int64_t* i = std::get_if<int64_t>(&data_)) return *i;
  wrong_type("integer", type());
}
double Value::as_number() const {
  if (const int64_t* i = std::get_if<int64_t>(&data_)) return static_cast<double>(*i);
  if (const Float* f = std::get_if<Float>(&data_)) return f->value;
  wrong_type("number", type());
}
const Float& Value::as_float() const {
  if (const Float* f = std::get_if<Float>(&data_)) return *f;
  wrong_type("number", type());
}
const std::string& Value::as_string() const {
  if (const std::string* s = std::get_if<std::string>(&data_)) return *s;
  wrong_type("string", type());
}
const Array& Value::as_array() const {
  if (const Array* a = std::get_if<Array>(&data_)) return *a;
  wrong_type("array", type());
}
Array& Value::as_array() {
  if (Array* a = std::get_if<Array>(&data_)) return *a;
  wrong_type("array", type());
}
const Object& Value::as_object() const {
  if (const Object* o = std::get_if<Object>(&data_)) return *o;
  wrong_type("object", type());
}
Object& Value::as_object() {
  if (Object* o = std::get_if<Object>(&data_)) return *o;
  wrong_type("object", type());
}

const Value* Value::find(std::string_view key) const {
  const Object* object = std::get_if<Object>(&data_);
  if (!object) return nullptr;
  for (const auto& [name, value] : *object) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Value& Value::at(std::string_view key) const {
  if (const Value* found = find(key)) return *found;
  throw Error(ErrorKind::data, "missing JSON key \"" + std::string(key) + "\"");
}

Value& Value::set(std::string_view key, Value value) {
  if (is_null()) data_ = Object{};
  for (auto& [name, present] : as_object()) {
    if (name == key) return present = std::move(value);
  }
  as_object().emplace_back(std::string(key), std::move(value));
  return as_object().back().second;
}

bool Value::operator==(const Value& other) const {
  if (is_number() && other.is_number()) {
    if (is_integer() && other.is_integer()) return as_integer() == other.as_integer();
    return as_number() == other.as_number();
  }
  if (type() != other.type()) return false;
  switch (type()) {
    case Type::null:
      return true;
    case Type::boolean:
      return as_bool() == other.as_bool();
    case Type::string:
      return as_string() == other.as_string();
    case Type::array:
      return as_array() == other.as_array();
    case Type::object:
      return as_object() == other.as_object();
    default:
      return false;
  }
}

Value parse(std::string_view text, std::string_view where) {
  Builder builder;
  if (nlohmann::json::sax_parse(text, &builder)) return std::move(builder.root);
  std::string place(where);
  if (builder.position > 0) place += ", " + line_and_column(text, builder.position - 1);
  throw Error(ErrorKind::data, "malformed JSON: " + builder.problem, place, "repair or remove it");
}

bool for_each_item(const ByteReader& read, std::string_view key, std::string_view where,
                   const std::function<void(const Value&)>& visit, const ItemLimits& limits) {
  ByteSource source(read, limits.bytes);
  ItemBuilder builder(source, key, visit, limits.values);
  if (nlohmann::json::sax_parse(ByteIterator{&source}, ByteIterator{}, &builder)) return builder.found;
  if (source.too_long()) builder.problem = "more than " + std::to_string(limits.bytes) + " bytes in one item";
  throw Error(ErrorKind::data, "malformed JSON: " + builder.problem,
              std::string(where) + ", byte " + std::to_string(source.position()), "repair or remove it");
}

Value parse_file(const std::string& path) {
  return parse(read_file(path), path);
}

std::string dump(const Value& value, int indent) {
  std::string out;
  append(out, value, indent, 0);
  return out;
}

std::string quote(std::string_view text) {
  static constexpr char hex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (byte < 0x20) {
          out += "\\u00";
          out += hex[byte >> 4];
          out += hex[byte & 15];
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

}  // namespace deltatune::json
