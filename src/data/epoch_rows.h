// The rows of one epoch and their order: which conversations lie together, and when.
//
// An epoch: conversations in an order drawn by Philox from (seed, epoch), packed in windows, rows in a second
// drawn order. A pure function of (lengths, options, seed, epoch), whatever the world size. The order is an
// array of 4 bytes a conversation, as the lengths are: packing needs those anyway, so a permutation that is
// computed place by place would save nothing. Token ids are not looked at: they may lie in a mapped file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/mixture.h"
#include "data/packer.h"

namespace deltatune {

struct StreamOptions {
  int64_t max_tokens = 16384;  ///< T
  uint64_t seed = 42;
  int64_t world_size = 1;
  int64_t rank = 0;
  int64_t gradient_accumulation_steps = 1;
  bool shuffle = true;
  int32_t pad_id = 0;
  Batching batching = Batching::packed;
  int64_t max_segments = 0;  ///< most segments of a row, see PackLimits; streams may need fewer
  /// How often conversations appear in an epoch; empty: each once. Of training only.
  std::vector<MixturePart> mixture;

  PackLimits limits() const { return {max_tokens, max_segments}; }
  /// Rows of one optimizer step, of all ranks.
  int64_t rows_per_step() const { return world_size * gradient_accumulation_steps; }
};

/// Goes into the fingerprints of streams: changes whenever the same options give other rows.
inline constexpr int packing_version = 2;

/// "packed", "padded", "sorted".
const char* name_of(Batching batching);

/// Throws Error{usage} for max_tokens, max_segments and gradient_accumulation_steps out of range.
void check_options(const StreamOptions& options);

struct EpochRows {
  int64_t number = -1;
  PackedRows rows;
  std::vector<int32_t> order;  ///< [rows] row numbers as they are used

  /// Documents of the row that is used as number i.
  std::span<const int32_t> row(int64_t i) const { return rows.row(order[static_cast<size_t>(i)]); }
};

/// lengths: of every conversation, each in [1, T] (an assertion).
EpochRows make_epoch_rows(std::span<const int32_t> lengths, const StreamOptions& options, int64_t epoch);

/// Optimizer steps that use `rows` rows: the last one is completed with rows of filler.
int64_t steps_of_rows(int64_t rows, const StreamOptions& options);

}  // namespace deltatune
