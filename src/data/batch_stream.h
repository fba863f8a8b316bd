// BatchStream: the micro-batches of one rank, epoch after epoch, resumable at any of them.
//
// The rows of an epoch and their order are those of data/epoch_rows.h. Row r of the epoch goes to rank r %
// world_size of micro-batch r / world_size, so the rows are the same for every world size and a run can
// resume with another one. The last accumulation window is completed with rows of filler without targets: all
// ranks make the same number of steps, no conversation is left out. The stream is a pure function of (data,
// options, seed, epoch, world size); same cursor, same bits. Not for use by several threads at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/epoch_rows.h"
#include "data/row_stream.h"

namespace deltatune {

class BatchStream final : public RowStream {
 public:
  /// `set` must outlive the stream. Throws Error{usage} for options out of range and for a set with a
  /// conversation longer than max_tokens.
  BatchStream(const TokenizedSet& set, StreamOptions options);
  BatchStream(BatchStream&&) = default;

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
  /// Conversations and their tokens of the epoch at the cursor, each as often as it is used.
  int64_t conversations() const { return static_cast<int64_t>(epoch_.rows.documents.size()); }
  int64_t tokens() const;
  double epoch_progress() const override;

  /// The most segments that a row of the stream can have, filler included: as many as the first epoch needs.
  /// Later epochs are packed not to exceed it.
  int64_t max_segments() const { return options_.max_segments; }

  Batch next() override;
  Cursor cursor() const override;
  void seek(const Cursor& cursor) override;
  const std::string& fingerprint() const override { return fingerprint_; }
  const StreamOptions& options() const { return options_; }

 private:
  int64_t steps_from(const Cursor& from, double epochs) const;
  EpochRows make_epoch(int64_t number) const { return make_epoch_rows(lengths_, options_, number); }
  void enter_epoch(int64_t number);

  const TokenizedSet& set_;
  StreamOptions options_;
  std::vector<int32_t> lengths_;
  std::string fingerprint_;
  EpochRows epoch_;
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
