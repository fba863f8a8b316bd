// Loading a dataset: rows of any mix of files become a TokenizedSet.
//
// Rows are parsed, rendered and tokenised by all threads, but always kept in the order of the files. What is
// left out is counted, never silent: malformed rows (on_bad_row: skip), empty ones, conversations without a
// supervised target, and whatever `overflow` cuts off or drops.
// With a cache folder, ids go to the cache file as they are made, and the set is a view of that file: memory
// holds one block of rows, and about 1/7 byte a token. Without one the whole set is held: 4 bytes and 1 bit
// per token.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "data/conversation.h"
#include "data/dataset_cache.h"
#include "data/row_encoder.h"
#include "data/tokenized_set.h"

namespace deltatune {

struct DatasetOptions : RowOptions {
  std::string split;   ///< which files of a folder load_dataset() reads; empty: all
  CacheOptions cache;  ///< of load_dataset()
};

/// Collects rows from any mix of files and JSON values, then finish()es.
class TokenizedSetBuilder {
 public:
  /// `encode` may be empty when all rows are tokenised already (a chat row is then a row problem). Throws
  /// Error{usage} when max_length > max_tokens or one of them is not positive.
  TokenizedSetBuilder(DatasetOptions options, EncodeConversation encode);
  ~TokenizedSetBuilder();

  /// Writes the set to the cache's file as it grows; a failure (disk full) is logged, and the set goes on in
  /// memory. Before the first row. `cache` must outlive this object.
  void keep_in(const DatasetCache& cache);
  /// Bytes that all add_file() calls together will read: for the time left in progress lines.
  void expect_bytes(int64_t bytes);

  /// A file of rows, see data/row_source.h. Throws Error{data}: unreadable, no rows, or (on_bad_row: error)
  /// the first bad row, with file and line.
  void add_file(const fs::path& path);
  /// JSON Lines in memory; `name` stands for the file in messages.
  void add_lines(std::string_view text, const std::string& name);
  /// An array of rows, or {"sequences": [...]}.
  void add_rows(const json::Value& rows, const std::string& name);
  /// The set, with the log line about what was left out. Throws Error{data} when nothing is left.
  TokenizedSet finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// All files of a `dataset` list (data/files.h) as one set, from the cache where it is there.
TokenizedSet load_dataset(const std::vector<std::string>& entries, const DatasetOptions& options,
                          const EncodeConversation& encode);

}  // namespace deltatune
