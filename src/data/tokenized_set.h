// TokenizedSet: the conversations of a dataset as token ids and supervised flags, read only.
//
// It is a view: the arrays lie in memory or in a mapped cache file (data/token_cache.h), and sets share them;
// a subset is a list of numbers over the arrays of the whole. Copying is cheap. Any number of threads may
// read one set.
// Invariants: a conversation has 1..max_length tokens; its first token is never a target (nothing predicts
// it), so the number of targets is that of label != -100 at t >= 1. It does not know how rows became tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/rows.h"

namespace deltatune {

/// Roles of messages behind the schema (data/conversation.h).
inline constexpr std::array<const char*, 4> role_names = {"system", "user", "assistant", "tool"};
inline constexpr size_t role_count = role_names.size();

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
  std::array<int64_t, role_count> messages{};  ///< of chat rows that were not skipped, by role_names
  int64_t conversations = 0;                   ///< kept
  int64_t tokens = 0;                          ///< kept
  int64_t targets = 0;                         ///< supervised tokens at t >= 1, kept
  int64_t skipped_rows() const;
};

/// A malformed row that on_bad_row: skip left out.
struct SkippedRow {
  int32_t file = 0;  ///< number of the file in the set
  int64_t line = 0;  ///< 1-based line, or element of a JSON array
  RowProblem problem = RowProblem::refused;
  std::string what, where, fix;  ///< as Error's; `where` is inside the row
};

/// The arrays of a whole set.
struct TokenArrays {
  std::span<const int32_t> ids;          ///< [tokens] of all conversations, one after the other
  std::span<const uint64_t> supervised;  ///< [ceil(tokens / 64)] bit k % 64 of word k / 64 belongs to ids[k]
  std::span<const int64_t> offsets;      ///< [conversations + 1] from 0 to tokens, increasing
  std::span<const int32_t> source_file;  ///< [conversations]
  std::span<const int64_t> source_line;  ///< [conversations]
  std::span<const int32_t> raw_lengths;  ///< [rows with a token] before overflow, in file order
};

/// Owner of the arrays.
class TokenStorage {
 public:
  virtual ~TokenStorage() = default;
  /// Called before ids [begin, end) are read. Throws Error{data} when they are not what was written.
  virtual void check_ids(int64_t begin, int64_t end) const = 0;
  TokenArrays arrays;
};

class TokenizedSet {
 public:
  TokenizedSet() = default;
  /// A whole set. `files` are the names that source_file counts. fingerprint: hash of ids, targets and
  /// boundaries.
  TokenizedSet(std::shared_ptr<const TokenStorage> storage, std::vector<std::string> files,
               DatasetCounts counts, std::string fingerprint, std::vector<SkippedRow> skipped = {});

  int64_t size() const { return size_; }
  int64_t length(int64_t i) const { return offset(whole(i) + 1) - offset(whole(i)); }
  /// Token ids of conversation i. [length] Throws Error{data} when the cache file they lie in is damaged.
  std::span<const int32_t> ids(int64_t i) const;
  /// True when token t of conversation i is a target of token t - 1; false for t = 0.
  bool supervised(int64_t i, int64_t t) const;
  int64_t targets(int64_t i) const;
  /// File, and 1-based line (JSON array: element), that conversation i came from.
  const std::string& file(int64_t i) const;
  int64_t line(int64_t i) const { return storage_->arrays.source_line[whole(i)]; }

  const DatasetCounts& counts() const { return counts_; }
  /// Length in tokens of every row that was tokenised, before overflow, in file order.
  std::span<const int32_t> raw_lengths() const;
  /// Hash of ids, targets and boundaries: equal sets train equally. That of a subset is made from the whole's
  /// and the list.
  const std::string& fingerprint() const { return fingerprint_; }
  /// The rows that counts().skipped counts, in file order.
  std::span<const SkippedRow> skipped() const { return skipped_; }
  /// Name of the file that SkippedRow::file counts.
  const std::string& file_name(int32_t file) const { return files_[static_cast<size_t>(file)]; }

  /// A set of these conversations, in this order, over the same arrays. Of the counts only those of what is
  /// kept are its own; it has no skipped rows.
  TokenizedSet subset(std::span<const int32_t> conversations) const;

 private:
  // Number in the arrays of conversation i of this set.
  size_t whole(int64_t i) const {
    const auto k = static_cast<size_t>(i);
    return is_subset_ ? static_cast<size_t>(picked_[k]) : k;
  }
  int64_t offset(size_t k) const { return storage_->arrays.offsets[k]; }

  std::shared_ptr<const TokenStorage> storage_;
  int64_t size_ = 0;
  bool is_subset_ = false;
  std::vector<int32_t> picked_;
  std::vector<int32_t> picked_lengths_;
  std::vector<std::string> files_;
  DatasetCounts counts_;
  std::string fingerprint_;
  std::vector<SkippedRow> skipped_;
};

}  // namespace deltatune
