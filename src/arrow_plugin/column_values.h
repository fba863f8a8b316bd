// Columns of an Arrow record batch as the JSON values that a line of the same content would give.
//
// A null member of a struct is absent (columnar files give every struct the members of all); a null element
// of a list or map stays null. Structs and maps become objects, whose members keep the order of the columns;
// integers, floats (shortest spelling that gives the same bits) and texts are themselves; NaN and infinity,
// which JSON lacks, are null; dates, times and decimals are their texts, decimals as numbers. Dictionary
// columns give their values. Texts have to be UTF-8. Arrays are checked by their reader, not here.
#pragma once

#include <arrow/array.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/json.h"

namespace deltatune {

/// One array, ready to be asked for elements by several threads.
class Column {
 public:
  Column() = default;
  virtual ~Column() = default;
  Column(const Column&) = delete;
  Column& operator=(const Column&) = delete;
  /// Element i; null where the array has none. `budget` is what may still be made of values in this row.
  /// Throws RowError: invalid UTF-8, a key twice in a map, more values than the budget.
  virtual json::Value value(int64_t i, int64_t& budget) const = 0;
};

/// Values of one row, nested ones included, beyond which it is refused.
inline constexpr int64_t most_values_of_a_row = int64_t{1} << 22;

/// A column over `array`, which it keeps alive. `path` names it in messages ("messages[].content"). nullptr
/// for types that have no JSON form (unions, run ends, intervals).
std::unique_ptr<Column> make_column(const std::shared_ptr<arrow::Array>& array, const std::string& path);

}  // namespace deltatune
