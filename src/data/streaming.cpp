// The reading thread, and the way of rows from its windows to a rank.
#include "data/streaming.h"

#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "data/window_reader.h"

namespace deltatune {
namespace {

constexpr size_t most_ready = 1;                   // windows that wait to be used
constexpr int64_t most_beyond = int64_t{1} << 24;  // rows of a cursor behind its window

}  // namespace

StreamingBatches::StreamingBatches(StreamingOptions options, EncodeConversation encode)
    : options_(std::move(options)), encode_(std::move(encode)) {
  check_options(options_.stream);
  check_lengths(options_.rows);
  DELTATUNE_ASSERT(!options_.files.empty() && options_.stream.mixture.empty());
  if (options_.shuffle_buffer_size < 1) {
    throw Error(ErrorKind::usage,
                format("shuffle_buffer_size {} is not positive", options_.shuffle_buffer_size),
                "shuffle_buffer_size", "use 1 or more; 10000 is the default");
  }
  const StreamOptions& stream = options_.stream;
  fingerprint_ = hash_hex(format("streaming {} {} {} {} {} {} {} {} {} {}", packing_version,
                                 options_.identity, stream.max_tokens, stream.seed, stream.shuffle,
                                 name_of(stream.batching), stream.max_segments, options_.shuffle_buffer_size,
                                 options_.rows.max_length, static_cast<int>(options_.rows.overflow)));
  cursor_.fingerprint = fingerprint_;
}

StreamingBatches::~StreamingBatches() {
  stop();
}

void StreamingBatches::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  changed_.notify_all();
}

void StreamingBatches::stop() {
  cancel();
  if (thread_.joinable()) thread_.join();
  ready_.clear();
  failure_ = nullptr;
  cancelled_ = false;
}

void StreamingBatches::start(int64_t epoch, int64_t file, int64_t file_row) {
  DELTATUNE_ASSERT(!thread_.joinable());
  thread_ = std::thread([this, epoch, file, file_row] { produce(epoch, file, file_row); });
}

// The thread: epoch after epoch.
void StreamingBatches::produce(int64_t epoch, int64_t file, int64_t file_row) {
  try {
    WindowReader reader(
        options_, encode_, [this](StreamWindow window) { return hand_over(std::move(window)); }, cancelled_);
    bool go_on = reader.read_epoch(epoch, file, file_row);
    while (go_on) go_on = reader.read_epoch(++epoch, 0, 0);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

bool StreamingBatches::hand_over(StreamWindow window) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return cancelled_ || ready_.size() < most_ready; });
  if (cancelled_) return false;
  ready_.push_back(std::move(window));
  changed_.notify_all();
  return true;
}

// Window i from the one that holds the cursor.
const StreamWindow& StreamingBatches::window(size_t i) {
  if (!thread_.joinable()) start(cursor_.epoch, cursor_.file, cursor_.file_row);
  while (windows_.size() <= i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return cancelled_ || !ready_.empty() || failure_; });
    if (ready_.empty() && failure_) std::rethrow_exception(failure_);
    if (cancelled_) throw Error(ErrorKind::internal, "reading was ended", "data stream");
    windows_.push_back(std::move(ready_.front()));
    ready_.pop_front();
    changed_.notify_all();
  }
  return windows_[i];
}

// Moves the cursor on to the window that holds its row, or to the next epoch.
void StreamingBatches::settle() {
  for (;;) {
    const StreamWindow& front = window(0);
    DELTATUNE_ASSERT(!front.end_of_epoch);
    cursor_.file = front.file;
    cursor_.file_row = front.file_row;
    cursor_.window = front.hash;
    const int64_t rows = front.rows.rows.rows();
    if (cursor_.row < rows) return;
    if (!window(1).end_of_epoch) {
      cursor_.row -= rows;
      windows_.pop_front();
      continue;
    }
    if (cursor_.micro_batch != 0) return;  // rows of filler complete the step
    windows_.clear();
    ++cursor_.epoch;
    cursor_.row = 0;
  }
}

// The row that lies `index` rows behind the start of the window at the cursor; filler behind the last one.
Batch StreamingBatches::batch_at(int64_t index) {
  const StreamOptions& options = options_.stream;
  for (size_t i = 0; !window(i).end_of_epoch; ++i) {
    const StreamWindow& found = windows_[i];
    const int64_t rows = found.rows.rows.rows();
    if (index >= rows) {
      index -= rows;
      continue;
    }
    const int32_t row = found.rows.order[static_cast<size_t>(index)];
    Batch batch = make_batch(found.set, found.rows.rows.row(row), options.max_tokens, options.pad_id,
                             found.rows.rows.padded_to[static_cast<size_t>(row)]);
    batch.row = row;
    return batch;
  }
  return make_batch({}, {}, options.max_tokens, options.pad_id);
}

Batch StreamingBatches::next() {
  settle();
  Batch batch = batch_at(cursor_.row + options_.stream.rank);
  cursor_.row += options_.stream.world_size;
  if (++cursor_.micro_batch == options_.stream.gradient_accumulation_steps) {
    cursor_.micro_batch = 0;
    ++cursor_.step;
  }
  return batch;
}

Cursor StreamingBatches::cursor() const {
  return cursor_;
}

void StreamingBatches::seek(const Cursor& cursor) {
  if (cursor.fingerprint != fingerprint_) {
    throw Error(ErrorKind::data, "the checkpoint was made with other data or other data options",
                format("data fingerprint {}, checkpoint {}", fingerprint_, cursor.fingerprint),
                "use the same files, tokenizer, max_length, max_tokens, "
                "batching, shuffle_buffer_size and "
                "data_seed, or start anew");
  }
  const auto missing = [&] {
    return Error(ErrorKind::data,
                 format("row {} of the window at row {} of file {} does not "
                        "exist in epoch {}",
                        cursor.row, cursor.file_row, cursor.file, cursor.epoch),
                 "data cursor", "resume from another checkpoint");
  };
  const bool possible = cursor.file < static_cast<int64_t>(options_.files.size()) &&
                        cursor.micro_batch < options_.stream.gradient_accumulation_steps &&
                        (!cursor.window.empty() || (cursor.row == 0 && cursor.micro_batch == 0));
  if (!possible) throw missing();
  const Cursor before = cursor_;
  stop();
  windows_.clear();
  cursor_ = cursor;
  if (cursor.window.empty()) return;
  try {
    const StreamWindow& front = window(0);
    if (front.end_of_epoch || front.file != cursor.file || front.file_row != cursor.file_row ||
        cursor.row > front.rows.rows.rows() + most_beyond) {
      throw missing();
    }
    if (front.hash != cursor.window) {
      throw Error(ErrorKind::data, "the data has changed since the checkpoint was made",
                  format("{}, from row {}", options_.files[static_cast<size_t>(cursor.file)].string(),
                         cursor.file_row),
                  "resume with the files as they were, or start anew from the "
                  "checkpoint's weights");
    }
  } catch (...) {
    stop();
    windows_.clear();
    cursor_ = before;
    throw;
  }
}

double StreamingBatches::epoch_progress() const {
  return static_cast<double>(cursor_.epoch) +
         static_cast<double>(cursor_.file) / static_cast<double>(options_.files.size());
}

}  // namespace deltatune
