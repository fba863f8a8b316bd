// WindowReader: rows of files, one after the other, as windows of tokenised conversations. The reading half
// of data/streaming.h; it knows of no threads but the pool's, which encode the rows of a block.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "data/streaming.h"

namespace deltatune {

class WindowReader {
 public:
  /// take: gets each window, in order; false ends reading. All references must outlive this object.
  WindowReader(const StreamingOptions& options, const EncodeConversation& encode,
               std::function<bool(StreamWindow)> take, const std::atomic<bool>& cancelled);
  ~WindowReader();

  /// Reads the rest of an epoch from a row on: its windows, then one with end_of_epoch. False: it was ended.
  /// Throws Error{data} as StreamingBatches::next().
  bool read_epoch(int64_t epoch, int64_t file, int64_t file_row);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatune
