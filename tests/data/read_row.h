// One row of a list of files by its number, for tests of the readers.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "data/row_source.h"
#include "data/rows.h"

namespace deltatune::testing_data {

/// Row `index` (from 0) of all files. `file` and `line` receive its place. Throws RowError with the place for
/// a malformed row, Error{usage} when there are fewer rows.
inline json::Value read_row(const std::vector<fs::path>& files, int64_t index, std::string& file,
                            int64_t& line) {
  int64_t seen = 0;
  json::Value found;
  bool done = index < 0;
  for (const fs::path& path : files) {
    if (done) break;
    visit_file(path, [&](const std::vector<RawRow>& rows) {
      const auto count = static_cast<int64_t>(rows.size());
      if (index >= seen + count) {
        seen += count;
        return true;
      }
      const RawRow& row = rows[static_cast<size_t>(index - seen)];
      file = path.string();
      line = row.number;
      try {
        found = row.parse();
      } catch (const RowError& e) {
        throw e.within(place_of(file, row));
      }
      done = true;
      return false;
    });
  }
  if (!done || index < 0) {
    throw Error(ErrorKind::usage, format("row {} does not exist", index),
                format("the dataset has {} rows", seen), "rows are numbered from 0");
  }
  return found;
}

}  // namespace deltatune::testing_data
