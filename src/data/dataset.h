// TokenizedSet: all conversations of a dataset in memory as token ids and supervised flags.
//
// Built from rows (chat rows through a callback that renders and tokenises, rows that are tokenised already
// as they are) by all threads, but always in the order of the files. What is left out is counted, never
// silent: malformed rows (on_bad_row: skip), empty ones, conversations without a supervised target, and
// whatever `overflow` cuts off or drops.
// Invariants: a conversation has 1..max_length tokens; its first token is never a target (nothing predicts
// it), so the number of targets is that of label != -100 at t >= 1; unless keep_all_masked, each has a
// target. It does not cache on disk, and holds the whole set: 4 bytes and 1 bit per token.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "data/conversation.h"
#include "data/rows.h"
#include "data/schema.h"
#include "text/marked_text.h"

namespace deltatune {

/// Renders and tokenises one conversation. Called by several threads at a time. An Error it throws becomes a
/// row problem (`refused`).
using EncodeConversation = std::function<MarkedTokens(const Conversation&)>;

/// What happens to a conversation of more than max_length tokens: keep the first max_length, leave it out,
/// or cut it into conversations of max_length (each starts without context).
enum class Overflow { truncate, drop, split };

struct DatasetOptions {
  OnBadRow on_bad_row = OnBadRow::error;
  Overflow overflow = Overflow::truncate;
  int64_t max_length = 8192;   ///< tokens of one conversation
  int64_t max_tokens = 16384;  ///< T, the row length: max_length may not be larger
  int64_t vocab_size = 0;      ///< ids of tokenised rows lie in [0, vocab_size)
  /// Keeps conversations without a target (parity needs their logits).
  bool keep_all_masked = false;
  SchemaOptions schema;
  std::string split;  ///< which files of a folder load_dataset() reads; empty: all
};

/// Rows = skipped + empty + all_masked + masked_by_overflow + dropped + (rows with at least one
/// conversation).
struct DatasetCounts {
  int64_t rows = 0;                                  ///< read, malformed ones too
  std::array<int64_t, row_problem_count> skipped{};  ///< by RowProblem
  int64_t empty = 0;                                 ///< rows without a token
  int64_t all_masked = 0;                            ///< rows without a target, left out
  int64_t masked_by_overflow = 0;                    ///< rows whose targets all lay beyond max_length
  int64_t truncated = 0;                             ///< rows that lost their end
  int64_t dropped = 0;                               ///< rows left out because they are too long
  int64_t split = 0;                                 ///< rows cut into several conversations
  int64_t split_pieces_masked = 0;                   ///< pieces without a target, left out
  int64_t tokens_cut = 0;                            ///< tokens that truncate, drop and split left out
  int64_t duplicates = 0;  ///< rows with the tokens and labels of an earlier one; kept
  int64_t empty_assistant_turns = 0;
  int64_t conversations = 0;  ///< kept
  int64_t tokens = 0;         ///< kept
  int64_t targets = 0;        ///< supervised tokens at t >= 1, kept
  int64_t skipped_rows() const;
};

class TokenizedSet {
 public:
  int64_t size() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t length(int64_t i) const { return offsets_[at(i + 1)] - offsets_[at(i)]; }
  /// Token ids of conversation i. [length]
  std::span<const int32_t> ids(int64_t i) const;
  /// True when token t of conversation i is a target of token t - 1; false for t = 0.
  bool supervised(int64_t i, int64_t t) const;
  int64_t targets(int64_t i) const;
  /// File, and 1-based line (JSON array: element), that conversation i came from.
  const std::string& file(int64_t i) const { return files_[static_cast<size_t>(sources_[at(i)].file)]; }
  int64_t line(int64_t i) const { return sources_[at(i)].line; }

  const DatasetCounts& counts() const { return counts_; }
  /// Length in tokens of every row that was tokenised, before overflow, in file order.
  const std::vector<int32_t>& raw_lengths() const { return raw_lengths_; }
  /// Hash of ids, targets and boundaries: equal sets train equally.
  const std::string& fingerprint() const { return fingerprint_; }

  /// A set of these conversations, in this order. Of the counts only those of what is kept are its own.
  TokenizedSet subset(std::span<const int32_t> conversations) const;

 private:
  void set_fingerprint();
  friend class TokenizedSetBuilder;
  struct Source {
    int32_t file = 0;
    int64_t line = 0;
  };
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  std::vector<int32_t> ids_;
  std::vector<uint64_t> supervised_;  // bit k % 64 of word k / 64 belongs to ids_[k]
  std::vector<int64_t> offsets_ = {0};
  std::vector<Source> sources_;
  std::vector<std::string> files_;
  std::vector<int32_t> raw_lengths_;
  DatasetCounts counts_;
  std::string fingerprint_;
};

/// Collects rows from any mix of files and JSON values, then finish()es.
class TokenizedSetBuilder {
 public:
  /// `encode` may be empty when all rows are tokenised already (a chat row is then a row problem). Throws
  /// Error{usage} when max_length > max_tokens or one of them is not positive.
  TokenizedSetBuilder(DatasetOptions options, EncodeConversation encode);
  ~TokenizedSetBuilder();

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

/// All files of a `dataset` list (data/files.h) as one set.
TokenizedSet load_dataset(const std::vector<std::string>& entries, const DatasetOptions& options,
                          const EncodeConversation& encode);

}  // namespace deltatune
