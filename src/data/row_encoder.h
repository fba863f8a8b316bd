// One row of a dataset to tokens, and which parts of it become conversations.
//
// Both halves depend on the row and the options alone, so rows can be encoded by any number of threads and in
// any order; whoever keeps them in the order of the files gets the same set every time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "data/conversation.h"
#include "data/row_source.h"
#include "data/rows.h"
#include "data/schema.h"
#include "data/tokenized_set.h"
#include "text/marked_text.h"

namespace deltatune {

/// Renders and tokenises one conversation. Called by several threads at a time. An Error it throws becomes a
/// row problem (`refused`).
using EncodeConversation = std::function<MarkedTokens(const Conversation&)>;

/// What happens to a conversation of more than max_length tokens: keep the first max_length, leave it out,
/// or cut it into conversations of max_length (each starts without context).
enum class Overflow { truncate, drop, split };

struct RowOptions {
  OnBadRow on_bad_row = OnBadRow::error;
  Overflow overflow = Overflow::truncate;
  int64_t max_length = 8192;   ///< tokens of one conversation
  int64_t max_tokens = 16384;  ///< T, the row length: max_length may not be larger
  int64_t vocab_size = 0;      ///< ids lie in [0, vocab_size)
  /// Keeps conversations without a target (parity needs their logits).
  bool keep_all_masked = false;
  SchemaOptions schema;
};

/// Throws Error{usage} when max_length > max_tokens or one of them is not positive.
void check_lengths(const RowOptions& options);

/// What becomes of one row: tokens, or a problem.
struct EncodedRow {
  MarkedTokens tokens;
  Hash128 hash{};  ///< of ids and targets, for finding equal rows
  int64_t empty_assistant_turns = 0;
  std::array<int64_t, role_count> messages{};  ///< by role_names; of chat rows
  std::optional<SchemaNote> note;              ///< chat rows
  std::optional<RowError> problem;
};

/// Parses and encodes. `encode` may be empty when all rows are tokenised already (a chat row is then a row
/// problem). Throws what is not the row's fault: errors of the machine or the set-up.
EncodedRow encode_row(const RawRow& row, const std::string& file, const RowOptions& options,
                      const EncodeConversation& encode);

/// Tokens [begin, end) of a row, one conversation of the set. Token t of it is a target when
/// supervised[t] != 0 and t > begin.
struct Piece {
  size_t begin = 0;
  size_t end = 0;
  int64_t targets = 0;
};

/// The conversations of a row without a problem, none to many; what is left out is added to `counts`, as are
/// conversations, tokens and targets (rows, skipped, duplicates and empty_assistant_turns are the caller's).
std::vector<Piece> pieces_of(const MarkedTokens& tokens, const RowOptions& options, DatasetCounts& counts);

}  // namespace deltatune
