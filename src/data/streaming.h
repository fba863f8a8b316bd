// StreamingBatches: training on data that is tokenised as it is read, for sets that are too large to tokenise
// before the first step (streaming: true).
//
// A thread reads the files in their order and tokenises the rows. Every `shuffle_buffer_size` conversations
// (or 64 Mi tokens, whichever comes first; a row is never cut in two) make a window: shuffled by (seed,
// epoch, the window's place), packed and dealt to the ranks like an epoch of data/epoch_rows.h. Rows of
// filler complete the last step of an epoch only. So every conversation of the files is used exactly once an
// epoch, and the stream is a pure function of (files, options, seed, epoch, world size), the rows the same
// for every world size. Each rank reads and tokenises everything. One window is in use, one is ready, one is
// in the making: memory is bounded by about 20 bytes for each token of a window, whatever the size of the
// files. Where rows are so few that a micro-batch reaches over several windows, those are held together.
// Conversations of different windows never change places: files that are sorted stay sorted on a scale beyond
// the window.
// A cursor names the window's first row. Resuming reads the file up to that row (without parsing rows) and
// tokenises the window again, which must have the same hash. How many steps an epoch has is not known.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "data/epoch_rows.h"
#include "data/row_encoder.h"
#include "data/row_stream.h"

namespace deltatune {

struct StreamingOptions {
  std::vector<fs::path> files;
  RowOptions rows;
  StreamOptions stream;  ///< mixture must be empty
  int64_t shuffle_buffer_size = 10000;
  /// Goes into the fingerprint: what the files and the encoder are.
  std::string identity;
  /// Gets each row that on_bad_row: skip leaves out, in every epoch anew; called by the reading thread.
  std::function<void(const std::string& file, int64_t line, const RowError& problem)> on_skip;
};

/// Consecutive conversations of the files, tokenised, packed.
struct StreamWindow {
  int64_t file = 0;      ///< number of the file of the first row
  int64_t file_row = 0;  ///< the first row, from 0
  TokenizedSet set;
  EpochRows rows;
  std::string hash;           ///< of the tokens
  bool end_of_epoch = false;  ///< no window: the files are at their end
};

class StreamingBatches final : public RowStream {
 public:
  /// `encode` as for TokenizedSetBuilder; what it refers to must outlive the stream. Nothing is read before
  /// next() or seek(). Throws Error{usage} for options out of range.
  StreamingBatches(StreamingOptions options, EncodeConversation encode);
  ~StreamingBatches() override;

  /// Throws what reading throws: Error{data} for unreadable files, for bad rows under on_bad_row: error, and
  /// when an epoch has no conversation at all.
  Batch next() override;
  Cursor cursor() const override;
  /// Reads the window again; throws Error{data} too when its tokens differ.
  void seek(const Cursor& cursor) override;
  /// Within an epoch: the share of the files that are behind the window's first row.
  double epoch_progress() const override;
  const std::string& fingerprint() const override { return fingerprint_; }
  void cancel() override;

 private:
  const StreamWindow& window(size_t i);
  void settle();
  Batch batch_at(int64_t row);
  void start(int64_t epoch, int64_t file, int64_t file_row);
  void stop();
  void produce(int64_t epoch, int64_t file, int64_t file_row);
  bool hand_over(StreamWindow window);

  StreamingOptions options_;
  EncodeConversation encode_;
  std::string fingerprint_;
  Cursor cursor_;
  std::deque<StreamWindow> windows_;  // the first one holds the cursor

  std::thread thread_;
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<StreamWindow> ready_;
  std::exception_ptr failure_;
};

}  // namespace deltatune
