// Prefetcher: a thread that makes batches ahead of the step.
//
// It hands on the batches of another stream, the same ones in the same order. Its cursor is that of the batch
// last taken, whatever the thread has made since: a checkpoint never skips a batch. An error of the thread
// arrives with the next() that would have met it. Waiting is the caller's to measure; a wait of more than a
// few seconds is said in the log, again and again at growing intervals.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "data/row_stream.h"

namespace deltatune {

class Prefetcher final : public RowStream {
 public:
  /// Keeps up to `depth` batches ready; 0: none, and no thread. The thread starts with the first next().
  /// Until this object is destroyed nobody else may use the source.
  Prefetcher(std::unique_ptr<RowStream> source, int64_t depth);
  /// Ends the thread, through source.cancel().
  ~Prefetcher() override;

  Batch next() override;
  Cursor cursor() const override { return cursor_; }
  /// Drops what was made ahead.
  void seek(const Cursor& cursor) override;
  double epoch_progress() const override { return progress_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  void cancel() override;

 private:
  struct Item {
    Batch batch;
    Cursor cursor;  // behind the batch
    double progress = 0;
  };
  Item make();
  void run();
  void stop();
  void take_place();

  std::unique_ptr<RowStream> source_;
  size_t depth_;
  std::string fingerprint_;
  Cursor cursor_;
  double progress_ = 0;

  std::thread thread_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Item> ready_;
  std::exception_ptr failure_;
  bool stop_ = false;
};

}  // namespace deltatune
