// The rows that `data show | render | tokenize` were asked for, one after the other, and how each becomes a
// conversation and tokens.
//
// A row that cannot be read is handed over with its problem, so that a verb may name it and go on. Memory:
// one block of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "data/conversation.h"
#include "data/schema.h"
#include "text/marked_text.h"
#include "train/config.h"
#include "train/text_source.h"

namespace deltatune::cli {

struct DatasetRow {
  json::Value value;             ///< null where there is a problem
  std::optional<Error> problem;  ///< why the row could not be parsed, with file and line
  std::string file;
  int64_t line = 0;  ///< 1-based line, or element of an array or of the columns
  std::string at;    ///< "rows.jsonl, line 3", or "rows.parquet, row 3"
  int64_t index = 0;

  /// "row 2 (rows.jsonl, line 3)".
  std::string place() const;
  /// {"row", "file", "line"}
  json::Value to_json() const;
};

/// Calls visit(row) for the row named by --row, else for the first --rows. Throws Error{usage} for a row that
/// does not exist, and what reading the files throws.
void visit_wanted_rows(const Config& config, const std::function<void(const DatasetRow&)>& visit);

/// The row's chat in the messages shape; its schema goes to `notices`. Throws the row's problem, or RowError
/// with the place.
Conversation conversation_of_row(const DatasetRow& row, const Config& config, SchemaNotices& notices);

/// The row as the model will see it. Throws as conversation_of_row(), and Error{data} for a chat row without
/// a tokenizer.
MarkedTokens tokens_of_row(const DatasetRow& row, const Config& config, const TextSource& text,
                           SchemaNotices& notices);

/// A token counts from the second on: nothing predicts the first.
inline bool is_target(const MarkedTokens& tokens, size_t i) {
  return i > 0 && tokens.supervised[i] != 0;
}

/// {"row", "file", "line", "input_ids", "labels", "pieces"}: labels as Hugging Face's collators write them.
json::Value tokens_json(const DatasetRow& row, const MarkedTokens& tokens, const TextSource& text);

/// {"error", "where", "fix"}: what stands in place of a result that could not be made.
json::Value error_json(const Error& error);

/// One line on standard output.
void print_json(const json::Value& value);

}  // namespace deltatune::cli
