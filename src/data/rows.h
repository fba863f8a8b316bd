// What can be wrong with one row of a dataset, and what to do about it.
//
// A row problem is a mistake in the data, found while reading one row. With `on_bad_row: error` (the default)
// the first one stops the program; with `skip` rows are left out and counted per problem.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace deltatune {

enum class OnBadRow { error, skip };

/// The kinds that are counted apart. `refused` is a row that the chat template or the tokenizer refuses.
enum class RowProblem {
  malformed_json,
  invalid_utf8,
  not_an_object,
  unknown_schema,
  messages,
  role,
  content,
  image,
  unknown_key,
  tool_call,
  tools,
  no_assistant,
  labels,
  refused,
};
inline constexpr int row_problem_count = static_cast<int>(RowProblem::refused) + 1;

/// "malformed_json", ...: the key of the counts in reports.
const char* name_of(RowProblem problem);

/// An Error{data} about one row; `where` is the place inside the row (the reader adds file and line).
class RowError : public Error {
 public:
  RowError(RowProblem problem, std::string what, std::string where, std::string fix)
      : Error(ErrorKind::data, std::move(what), std::move(where), std::move(fix)), problem_(problem) {}
  RowProblem problem() const noexcept { return problem_; }

 private:
  RowProblem problem_;
};

}  // namespace deltatune
