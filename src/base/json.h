// JSON values: a small ordered tree of ours; the parser behind it is nlohmann-json's.
//
// Objects keep the order of the file (chat templates print tools in that order). Numbers remember whether
// they were written as integers, and floats keep their spelling ("1.0", "1e-7"), because templates print them
// back. Parsing any bytes yields a Value or an Error{data}: depth is limited, duplicate keys, invalid UTF-8
// and lone surrogates are refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace deltatune::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;
/// In file order; keys are unique.
using Object = std::vector<Member>;

/// A float with the text it was written as (empty: made by a program).
struct Float {
  double value = 0;
  std::string spelling;
};

enum class Type { null, boolean, integer, floating, string, array, object };

class Value {
 public:
  Value() = default;
  Value(std::nullptr_t) {}                              // NOLINT(google-explicit-constructor)
  Value(bool b) : data_(b) {}                           // NOLINT(google-explicit-constructor)
  Value(int i) : data_(int64_t{i}) {}                   // NOLINT(google-explicit-constructor)
  Value(int64_t i) : data_(i) {}                        // NOLINT(google-explicit-constructor)
  Value(double d) : data_(Float{d, {}}) {}              // NOLINT(google-explicit-constructor)
  Value(Float f) : data_(std::move(f)) {}               // NOLINT(google-explicit-constructor)
  Value(const char* s) : data_(std::string(s)) {}       // NOLINT(google-explicit-constructor)
  Value(std::string s) : data_(std::move(s)) {}         // NOLINT(google-explicit-constructor)
  Value(std::string_view s) : data_(std::string(s)) {}  // NOLINT(google-explicit-constructor)
  Value(Array a) : data_(std::move(a)) {}               // NOLINT(google-explicit-constructor)
  Value(Object o) : data_(std::move(o)) {}              // NOLINT(google-explicit-constructor)

  Type type() const { return static_cast<Type>(data_.index()); }
  /// "null", "boolean", "integer", "number", "string", "array" or "object": for messages.
  const char* type_name() const;
  bool is_null() const { return type() == Type::null; }
  bool is_bool() const { return type() == Type::boolean; }
  bool is_integer() const { return type() == Type::integer; }
  bool is_number() const { return is_integer() || type() == Type::floating; }
  bool is_string() const { return type() == Type::string; }
  bool is_array() const { return type() == Type::array; }
  bool is_object() const { return type() == Type::object; }

  /// The as_* functions throw Error{data} "expected an integer, found a string" on another type.
  bool as_bool() const;
  int64_t as_integer() const;
  double as_number() const;  ///< integers too
  const Float& as_float() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  /// Member of an object, or nullptr (also when this is no object).
  const Value* find(std::string_view key) const;
  /// Member of an object; throws Error{data} naming the key.
  const Value& at(std::string_view key) const;
  /// Sets or appends a member; a null value becomes an object first.
  Value& set(std::string_view key, Value value);

  bool operator==(const Value& other) const;

 private:
  std::variant<std::monostate, bool, int64_t, Float, std::string, Array, Object> data_;
};

/// Parses one JSON text (surrounding white space allowed). `where` names the source in errors; an error says
/// line and column. Throws Error{data}.
Value parse(std::string_view text, std::string_view where);
Value parse_file(const std::string& path);

/// Shortest text. Floats without spelling print so that they parse back to the same bits; NaN and infinity,
/// which JSON lacks, print as null. indent > 0: one member per line.
std::string dump(const Value& value, int indent = 0);
/// A JSON string literal with quotes; non-ASCII characters stay as they are.
std::string quote(std::string_view text);

}  // namespace deltatune::json
