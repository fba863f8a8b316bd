// One small class per kind of array; nesting is a tree of them.
#include "arrow_plugin/column_values.h"

#include <arrow/array/array_dict.h>
#include <arrow/array/array_nested.h>
#include <arrow/scalar.h>
#include <arrow/type_traits.h>
#include <arrow/util/utf8.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "data/rows.h"

namespace deltatune {
namespace {

void spend(int64_t& budget) {
  if (--budget >= 0) return;
  throw RowError(RowProblem::not_an_object, format("the row holds more than {} values", most_values_of_a_row),
                 "", "split the row");
}

std::string text_at(std::string_view bytes, const std::string& path) {
  if (!arrow::util::ValidateUTF8(bytes)) {
    throw RowError(RowProblem::invalid_utf8, "the text is not valid UTF-8", "column " + path,
                   "write it as UTF-8, or leave the column out");
  }
  return std::string(bytes);
}

// The shortest text that gives the same bits back, so that 0.1 of 32 bits prints as 0.1.
template <class F>
json::Value number(F value) {
  if (!std::isfinite(value)) return {};
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string spelling(text, end);
  if (spelling.find_first_of(".e") == std::string::npos) spelling += ".0";
  return json::Float{static_cast<double>(value), std::move(spelling)};
}

template <class ArrayType>
struct IntegerColumn final : Column {
  explicit IntegerColumn(std::shared_ptr<arrow::Array> a) : array(std::static_pointer_cast<ArrayType>(a)) {}
  json::Value value(int64_t i, int64_t& budget) const override {
    spend(budget);
    if (array->IsNull(i)) return {};
    const auto v = array->Value(i);
    if constexpr (sizeof(v) == 8 && std::is_unsigned_v<decltype(v)>) {
      if (v > static_cast<uint64_t>(INT64_MAX)) {
        return json::Float{static_cast<double>(v), std::to_string(v)};
      }
    }
    return static_cast<int64_t>(v);
  }
  std::shared_ptr<ArrayType> array;
};

template <class ArrayType>
struct FloatColumn final : Column {
  explicit FloatColumn(std::shared_ptr<arrow::Array> a) : array(std::static_pointer_cast<ArrayType>(a)) {}
  json::Value value(int64_t i, int64_t& budget) const override {
    spend(budget);
    return array->IsNull(i) ? json::Value() : number(array->Value(i));
  }
  std::shared_ptr<ArrayType> array;
};

struct BooleanColumn final : Column {
  explicit BooleanColumn(std::shared_ptr<arrow::Array> a)
      : array(std::static_pointer_cast<arrow::BooleanArray>(a)) {}
  json::Value value(int64_t i, int64_t& budget) const override {
    spend(budget);
    return array->IsNull(i) ? json::Value() : json::Value(array->Value(i));
  }
  std::shared_ptr<arrow::BooleanArray> array;
};

struct NullColumn final : Column {
  json::Value value(int64_t, int64_t& budget) const override {
    spend(budget);
    return {};
  }
};

template <class ArrayType>
struct TextColumn final : Column {
  TextColumn(std::shared_ptr<arrow::Array> a, std::string p)
      : array(std::static_pointer_cast<ArrayType>(a)), path(std::move(p)) {}
  json::Value value(int64_t i, int64_t& budget) const override {
    spend(budget);
    if (array->IsNull(i)) return {};
    return text_at(array->GetView(i), path);
  }
  std::shared_ptr<ArrayType> array;
  std::string path;
};

// Dates, times, durations and decimals: what Arrow prints.
struct PrintedColumn final : Column {
  PrintedColumn(std::shared_ptr<arrow::Array> a, std::string p) : array(std::move(a)), path(std::move(p)) {}
  json::Value value(int64_t i, int64_t& budget) const override {
    spend(budget);
    if (array->IsNull(i)) return {};
    const auto scalar = array->GetScalar(i);
    std::string text = scalar.ok() ? scalar.ValueUnsafe()->ToString() : std::string();
    if (!arrow::is_decimal(array->type_id())) return text_at(text, path);
    double value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return json::Float{value, std::move(text)};
  }
  std::shared_ptr<arrow::Array> array;
  std::string path;
};

struct DictionaryColumn final : Column {
  DictionaryColumn(std::shared_ptr<arrow::Array> a, std::string p)
      : array(std::static_pointer_cast<arrow::DictionaryArray>(a)),
        path(std::move(p)),
        values(make_column(array->dictionary(), path)) {}
  json::Value value(int64_t i, int64_t& budget) const override {
    if (array->IsNull(i)) return {};
    const int64_t entry = array->GetValueIndex(i), entries = array->dictionary()->length();
    // Arrow's cheap validation, the one that was made, does not look at indices.
    if (entry < 0 || entry >= entries) {
      throw Error(ErrorKind::data,
                  format("the file is corrupt: value {} of a dictionary of {}", entry, entries),
                  "column " + path, "get the file again");
    }
    return values->value(entry, budget);
  }
  std::shared_ptr<arrow::DictionaryArray> array;
  std::string path;
  std::unique_ptr<Column> values;
};

template <class ArrayType>
struct ListColumn final : Column {
  ListColumn(std::shared_ptr<arrow::Array> a, const std::string& path)
      : array(std::static_pointer_cast<ArrayType>(a)), elements(make_column(array->values(), path + "[]")) {}
  json::Value value(int64_t i, int64_t& budget) const override {
    spend(budget);
    if (array->IsNull(i)) return {};
    const int64_t begin = array->value_offset(i);
    const int64_t end = begin + array->value_length(i);
    json::Array out;
    out.reserve(static_cast<size_t>(std::min(end - begin, budget)));
    for (int64_t k = begin; k < end; ++k) out.push_back(elements->value(k, budget));
    return out;
  }
  std::shared_ptr<ArrayType> array;
  std::unique_ptr<Column> elements;
};

struct StructColumn final : Column {
  StructColumn(std::shared_ptr<arrow::Array> a, const std::string& path)
      : array(std::static_pointer_cast<arrow::StructArray>(a)) {
    for (int f = 0; f < array->num_fields(); ++f) {
      const std::string& name = array->struct_type()->field(f)->name();
      if (std::find(names.begin(), names.end(), name) != names.end()) {
        throw Error(ErrorKind::data, format("two columns are called {}", json::quote(path + "." + name)), "",
                    "give each column a name of its own");
      }
      names.push_back(name);
      members.push_back(make_column(array->field(f), path + "." + name));
    }
  }
  json::Value value(int64_t i, int64_t& budget) const override {
    spend(budget);
    if (array->IsNull(i)) return {};
    json::Object out;
    for (size_t f = 0; f < members.size(); ++f) {
      if (!members[f]) continue;
      json::Value member = members[f]->value(i, budget);
      if (!member.is_null()) out.emplace_back(names[f], std::move(member));
    }
    return out;
  }
  std::shared_ptr<arrow::StructArray> array;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Column>> members;
};

struct MapColumn final : Column {
  MapColumn(std::shared_ptr<arrow::Array> a, std::string p)
      : array(std::static_pointer_cast<arrow::MapArray>(a)),
        keys(make_column(array->keys(), p + " (keys)")),
        items(make_column(array->items(), p + "{}")),
        path(std::move(p)) {}
  json::Value value(int64_t i, int64_t& budget) const override {
    spend(budget);
    if (array->IsNull(i)) return {};
    json::Object out;
    std::unordered_set<std::string> seen;
    const int64_t begin = array->value_offset(i);
    const int64_t end = begin + array->value_length(i);
    for (int64_t k = begin; k < end; ++k) {
      const json::Value key = keys->value(k, budget);
      std::string name = key.is_string() ? key.as_string() : json::dump(key);
      if (!seen.insert(name).second) {
        throw RowError(RowProblem::malformed_json, format("duplicate key {}", json::quote(name)),
                       "column " + path, "write each key of a map once");
      }
      out.emplace_back(std::move(name), items->value(k, budget));
    }
    return out;
  }
  std::shared_ptr<arrow::MapArray> array;
  std::unique_ptr<Column> keys;
  std::unique_ptr<Column> items;
  std::string path;
};

bool has_form(const arrow::DataType& type);

bool children_have_form(const arrow::DataType& type) {
  for (const auto& field : type.fields()) {
    if (!has_form(*field->type())) return false;
  }
  return true;
}

bool has_form(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRUCT:
      return true;  // members without a form are left out
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST:
    case arrow::Type::MAP:
      return children_have_form(type);
    case arrow::Type::DICTIONARY:
      return has_form(*static_cast<const arrow::DictionaryType&>(type).value_type());
    default:
      return (type.id() <= arrow::Type::TIME64 && type.id() != arrow::Type::HALF_FLOAT) ||
             arrow::is_decimal(type.id()) || type.id() == arrow::Type::DURATION ||
             type.id() == arrow::Type::LARGE_STRING || type.id() == arrow::Type::LARGE_BINARY ||
             type.id() == arrow::Type::STRING_VIEW || type.id() == arrow::Type::BINARY_VIEW;
  }
}

}  // namespace

std::unique_ptr<Column> make_column(const std::shared_ptr<arrow::Array>& array, const std::string& path) {
  using arrow::Type;
  if (!has_form(*array->type())) return nullptr;
  switch (array->type_id()) {
    case Type::NA:
      return std::make_unique<NullColumn>();
    case Type::BOOL:
      return std::make_unique<BooleanColumn>(array);
    case Type::INT8:
      return std::make_unique<IntegerColumn<arrow::Int8Array>>(array);
    case Type::INT16:
      return std::make_unique<IntegerColumn<arrow::Int16Array>>(array);
    case Type::INT32:
      return std::make_unique<IntegerColumn<arrow::Int32Array>>(array);
    case Type::INT64:
      return std::make_unique<IntegerColumn<arrow::Int64Array>>(array);
    case Type::UINT8:
      return std::make_unique<IntegerColumn<arrow::UInt8Array>>(array);
    case Type::UINT16:
      return std::make_unique<IntegerColumn<arrow::UInt16Array>>(array);
    case Type::UINT32:
      return std::make_unique<IntegerColumn<arrow::UInt32Array>>(array);
    case Type::UINT64:
      return std::make_unique<IntegerColumn<arrow::UInt64Array>>(array);
    case Type::FLOAT:
      return std::make_unique<FloatColumn<arrow::FloatArray>>(array);
    case Type::DOUBLE:
      return std::make_unique<FloatColumn<arrow::DoubleArray>>(array);
    case Type::STRING:
    case Type::BINARY:
      return std::make_unique<TextColumn<arrow::BinaryArray>>(array, path);
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return std::make_unique<TextColumn<arrow::LargeBinaryArray>>(array, path);
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return std::make_unique<TextColumn<arrow::BinaryViewArray>>(array, path);
    case Type::FIXED_SIZE_BINARY:
      return std::make_unique<TextColumn<arrow::FixedSizeBinaryArray>>(array, path);
    case Type::LIST:
      return std::make_unique<ListColumn<arrow::ListArray>>(array, path);
    case Type::LARGE_LIST:
      return std::make_unique<ListColumn<arrow::LargeListArray>>(array, path);
    case Type::FIXED_SIZE_LIST:
      return std::make_unique<ListColumn<arrow::FixedSizeListArray>>(array, path);
    case Type::STRUCT:
      return std::make_unique<StructColumn>(array, path);
    case Type::MAP:
      return std::make_unique<MapColumn>(array, path);
    case Type::DICTIONARY:
      return std::make_unique<DictionaryColumn>(array, path);
    default:
      return std::make_unique<PrintedColumn>(array, path);
  }
}

}  // namespace deltatune
