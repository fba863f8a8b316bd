// What `deltatune data pack` prints: rows, steps and fill of an epoch under each way of batching, beside what
// no packing can beat.
//
// Counted on the rows of epoch 0 as training draws and packs them. All slots of the epoch's rows are real
// tokens, padding (slots between a conversation's end and the width of its rectangle) or unused (behind the
// last conversation of a row): fill + padding + unused = 1. Rows of filler that complete the last step count
// as steps, not as slots.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/epoch_rows.h"

namespace deltatune {

struct PackLine {
  std::string name;  ///< padded, sorted, packed, limit
  int64_t rows = 0;
  int64_t steps = 0;
  double fill = 0;             ///< real tokens / slots
  double padding = 0;          ///< / slots
  double unused = 0;           ///< / slots
  double rectangle_waste = 0;  ///< padding / (padding + real tokens): padding share of the rectangles alone
  double fewer_steps = 0;      ///< 1 - steps / steps of padded; 0 where padded is not among the lines
  double seconds = 0;          ///< drawing and packing the epoch; of the limit 0
};

struct PackReport {
  int64_t conversations = 0;  ///< of the epoch: weighted ones as often as they appear
  int64_t tokens = 0;
  int64_t longest = 0;
  int64_t max_tokens = 0;       ///< T
  int64_t rows_per_step = 0;    ///< world size x accumulation
  std::vector<PackLine> lines;  ///< the last one is the limit: ceil(tokens / T) rows

  json::Value to_json() const;
  /// For people, without newlines.
  std::vector<std::string> to_lines() const;
};

/// lengths: each in [1, T]. compare: padded, sorted and packed; otherwise options.batching alone.
PackReport pack_report(std::span<const int32_t> lengths, const StreamOptions& options, bool compare);

}  // namespace deltatune
