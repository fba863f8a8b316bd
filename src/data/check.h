// What `deltatune data check` finds: every problem of every row, not only the first.
//
// Bad rows are those that training would stop at (on_bad_row: error) or leave out (skip). Notes are about
// rows that can be trained but are probably not meant: duplicates, empty answers, rows that max_length cuts,
// rows without a supervised token, control tokens typed in a message. A file that cannot be read any further
// is one finding, and the next file is read. Memory: one block of rows, and 40 bytes for each row.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "data/row_encoder.h"

namespace deltatune {

struct Finding {
  bool bad = false;     ///< else a note
  std::string problem;  ///< name_of(RowProblem), "unreadable", or a note: see note_fixes in check.cpp
  int64_t row = -1;     ///< from 0 over all files; -1: the file as a whole
  std::string file;
  int64_t line = 0;   ///< 1-based line, or row of an array or of columns; 0: the file as a whole
  std::string place;  ///< "a.jsonl, line 3", and where in the row
  std::string what, where, fix;
  std::string equal_file;  ///< of a duplicate: where the row that it equals is
  int64_t equal_line = 0;  ///< likewise, as `line`; 0: no duplicate

  /// {"bad", "problem", "row", "file", "line", "what", "where", "fix"}, for duplicates also "equal_to"
  /// {"file", "line"}
  json::Value to_json() const;
};

struct CheckOptions {
  RowOptions rows;
  /// Texts that would steer the model if they became tokens: "<|im_end|>" ...
  std::vector<std::string> control_tokens;
  double progress_after_s = 2;  ///< the first line of progress comes then
};

struct CheckSummary {
  int64_t files = 0;
  int64_t rows = 0;
  int64_t bad_rows = 0;
  int64_t unreadable_files = 0;
  std::map<std::string, int64_t> bad;    ///< findings by problem
  std::map<std::string, int64_t> notes;  ///< the same for notes
  bool tokenised = false;                ///< false: rows were not rendered, what follows is 0
  DatasetCounts counts;                  ///< of the good rows

  bool clean() const { return bad_rows == 0 && unreadable_files == 0; }
  json::Value to_json() const;
  /// For people: one fact per line.
  std::vector<std::string> to_lines() const;
};

/// Reads all rows of all files. report() gets the findings in file order, from the calling thread. `encode`
/// may be empty: rows are then checked up to the template. Throws what is no row's fault.
CheckSummary check_dataset(const std::vector<fs::path>& files, const CheckOptions& options,
                           const EncodeConversation& encode,
                           const std::function<void(const Finding&)>& report);

}  // namespace deltatune
