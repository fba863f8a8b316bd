// BatchStream: the micro-batches of one rank, epoch after epoch, resumable at any of them.
//
// An epoch: conversations in an order drawn by Philox from (seed, epoch), packed in windows, rows in a second
// drawn order. Row r of the epoch goes to rank r % world_size of micro-batch r / world_size, so the rows are
// the same for every world size and a run can resume with another one. The last accumulation window is
// completed with rows of filler without targets: all ranks make the same number of steps, no conversation is
// left out. The stream is a pure function of (data, options, seed, epoch, world size); same cursor, same
// bits. Not for use by several threads at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/batch.h"
#include "data/dataset.h"
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
};

/// Where a stream stands: before the micro-batch that next() gives.
struct Cursor {
  int64_t epoch = 0;
  int64_t row = 0;          ///< rows of the epoch that all ranks together have used
  int64_t micro_batch = 0;  ///< within the accumulation window
  int64_t step = 0;         ///< accumulation windows finished since the start of training
  std::string fingerprint;  ///< of the stream that made it

  json::Value to_json() const;
  /// Throws Error{data} for missing or negative members.
  static Cursor from_json(const json::Value& value);
  bool operator==(const Cursor&) const = default;
};

class BatchStream {
 public:
  /// `set` must outlive the stream. Throws Error{usage} for options out of range and for a set with a
  /// conversation longer than max_tokens.
  BatchStream(const TokenizedSet& set, StreamOptions options);

  /// Optimizer steps (accumulation windows) of one whole epoch; exact. Epochs differ by a few rows at most,
  /// because each is packed anew.
  int64_t steps_in_epoch(int64_t epoch) const;
  int64_t steps_per_epoch() const { return steps_in_epoch(0); }
  /// Steps of `epochs` epochs from the start, the last one in part: the length of a schedule. Exact; packs
  /// each of these epochs.
  int64_t steps(double epochs) const { return steps_from({}, epochs); }
  /// Steps that are left of `epochs` epochs at the cursor. cursor().step + steps_left(e) == steps(e) unless
  /// the run was resumed with another world size or accumulation.
  int64_t steps_left(double epochs) const { return steps_from(cursor_, epochs); }
  /// Rows of an epoch before filler rows.
  int64_t rows_in_epoch(int64_t epoch) const;
  /// Share of an epoch that lies behind the cursor, plus whole epochs: HF's fractional epoch.
  double epoch_progress() const;

  /// The most segments that a row of the stream can have, filler included: as many as the first epoch needs.
  /// Later epochs are packed not to exceed it.
  int64_t max_segments() const { return options_.max_segments; }

  /// The next micro-batch of this rank. Goes on for ever.
  Batch next();

  Cursor cursor() const;
  /// Throws Error{data} when the cursor is another data set's, or lies beyond the epoch.
  void seek(const Cursor& cursor);

  /// Hash of the data and of every option that decides which row holds what (not rank, world size and
  /// accumulation).
  const std::string& fingerprint() const { return fingerprint_; }
  const StreamOptions& options() const { return options_; }

 private:
  struct Epoch {
    int64_t number = -1;
    PackedRows rows;
    std::vector<int32_t> row_order;
  };
  int64_t steps_from(const Cursor& from, double epochs) const;
  Epoch make_epoch(int64_t number) const;
  void enter_epoch(int64_t number);

  const TokenizedSet& set_;
  StreamOptions options_;
  std::vector<int32_t> lengths_;
  std::string fingerprint_;
  Epoch epoch_;
  Cursor cursor_;
};

/// Every conversation once, in the order of the files, packed in windows; rows dealt to the ranks as above.
class EvalBatches {
 public:
  /// seed, shuffle and gradient_accumulation_steps are not used. `set` must outlive this.
  EvalBatches(const TokenizedSet& set, StreamOptions options);
  /// Micro-batches of each rank; the same on all.
  int64_t size() const;
  /// Micro-batch i of this rank; a row of filler where rows have run out.
  Batch batch(int64_t i) const;
  int64_t rows() const { return rows_.rows(); }
  /// The most segments of a row, filler included.
  int64_t max_segments() const;

 private:
  const TokenizedSet& set_;
  StreamOptions options_;
  PackedRows rows_;
};

}  // namespace deltatune
