// Names of the row problems, as they appear in reports.
#include "data/rows.h"

namespace deltatune {

const char* name_of(RowProblem problem) {
  switch (problem) {
    case RowProblem::malformed_json:
      return "malformed_json";
    case RowProblem::invalid_utf8:
      return "invalid_utf8";
    case RowProblem::not_an_object:
      return "not_an_object";
    case RowProblem::unknown_schema:
      return "unknown_schema";
    case RowProblem::messages:
      return "messages";
    case RowProblem::role:
      return "role";
    case RowProblem::content:
      return "content";
    case RowProblem::image:
      return "image";
    case RowProblem::unknown_key:
      return "unknown_key";
    case RowProblem::tool_call:
      return "tool_call";
    case RowProblem::tools:
      return "tools";
    case RowProblem::no_assistant:
      return "no_assistant";
    case RowProblem::labels:
      return "labels";
    case RowProblem::refused:
      return "refused";
  }
  return "?";
}

}  // namespace deltatune
