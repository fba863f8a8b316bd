// RowStream: what training needs of a source of micro-batches, whether the rows come from a tokenised set
// (data/batch_stream.h), are tokenised on the fly (data/streaming.h), or are made ahead of the step
// (data/prefetch.h).
//
// A stream is the micro-batches of one rank, epoch after epoch, for ever. It is a pure function of (data,
// options, seed, epoch, world size), and can be continued from the cursor before any of its micro-batches:
// same cursor, same bits.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "data/batch.h"

namespace deltatune {

/// Where a stream stands: before the micro-batch that next() gives.
struct Cursor {
  int64_t epoch = 0;
  /// Rows that all ranks together have used: of the epoch, or (streaming) of the window.
  int64_t row = 0;
  int64_t micro_batch = 0;  ///< within the accumulation window
  int64_t step = 0;         ///< accumulation windows finished since the start of training
  /// Streaming only: the window starts at row `file_row` (from 0, malformed ones count) of file `file`.
  int64_t file = 0;
  int64_t file_row = 0;
  std::string window;       ///< streaming only: hash of the window's tokens
  std::string fingerprint;  ///< of the stream that made it

  json::Value to_json() const;
  /// Throws Error{data} for missing or negative members.
  static Cursor from_json(const json::Value& value);
  bool operator==(const Cursor&) const = default;
};

class RowStream {
 public:
  RowStream() = default;
  virtual ~RowStream() = default;
  RowStream(const RowStream&) = delete;
  RowStream& operator=(const RowStream&) = delete;

  /// The next micro-batch of this rank.
  virtual Batch next() = 0;
  virtual Cursor cursor() const = 0;
  /// Throws Error{data} when the cursor is another data set's, or does not exist in this one.
  virtual void seek(const Cursor& cursor) = 0;
  /// Share of an epoch that lies behind the cursor, plus whole epochs: HF's fractional epoch.
  virtual double epoch_progress() const = 0;
  /// Hash of the data and of every option that decides which row holds what (not rank, world size and
  /// accumulation).
  virtual const std::string& fingerprint() const = 0;
  /// Makes a next() that is under way in another thread end soon, with an Error. Afterwards the stream can be
  /// sought or destroyed.
  virtual void cancel() {}

 protected:
  RowStream(RowStream&&) = default;
};

}  // namespace deltatune
