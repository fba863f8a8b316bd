// Dealing of rows to ranks, cursors.
#include "data/batch_stream.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"

namespace deltatune {
namespace {

std::vector<int32_t> counting(int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

int64_t rounded_up(int64_t count, int64_t unit) {
  return (count + unit - 1) / unit;
}

// Lengths of all conversations, after the checks that both kinds of batches share.
std::vector<int32_t> checked_lengths(const TokenizedSet& set, const StreamOptions& options) {
  check_options(options);
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < set.size(); ++i) {
    if (set.length(i) > options.max_tokens) {
      throw Error(
          ErrorKind::usage,
          format("a conversation of {} tokens does not fit max_tokens {}", set.length(i), options.max_tokens),
          format("{}, row {}", set.file(i), set.line(i)), "raise max_tokens or lower max_length");
    }
    lengths.push_back(static_cast<int32_t>(set.length(i)));
  }
  return lengths;
}

// The limit under which the rows would be packed again as they are.
int64_t segments_needed(const PackedRows& rows, Batching batching) {
  int64_t most = 1;
  for (int64_t r = 0; r < rows.rows(); ++r) most = std::max(most, static_cast<int64_t>(rows.row(r).size()));
  // A filler at the end; in rectangles one behind every document as well.
  return batching == Batching::packed ? most + 1 : 2 * most + 1;
}

Batch batch_of_row(const TokenizedSet& set, const StreamOptions& options, const PackedRows& rows,
                   int64_t row) {
  Batch batch = make_batch(set, rows.row(row), options.max_tokens, options.pad_id,
                           rows.padded_to[static_cast<size_t>(row)]);
  batch.row = row;
  return batch;
}

}  // namespace

BatchStream::BatchStream(const TokenizedSet& set, StreamOptions options)
    : set_(set), options_(options), lengths_(checked_lengths(set, options)) {
  fingerprint_ = hash_hex(format("{} {} {} {} {} {} {}", packing_version, set.fingerprint(),
                                 options.max_tokens, options.seed, options.shuffle ? "shuffled" : "in order",
                                 name_of(options.batching), options.max_segments));
  check_mixture(options.mixture, set.size());
  for (const MixturePart& part : options.mixture)
    fingerprint_ = hash_hex(format("{} {} {} {}", fingerprint_, part.begin, part.end, part.weight));
  enter_epoch(0);
  options_.max_segments = segments_needed(epoch_.rows, options_.batching);
}

void BatchStream::enter_epoch(int64_t number) {
  if (epoch_.number != number) epoch_ = make_epoch(number);
}

int64_t BatchStream::rows_in_epoch(int64_t epoch) const {
  return epoch == epoch_.number ? epoch_.rows.rows() : make_epoch(epoch).rows.rows();
}

int64_t BatchStream::tokens() const {
  int64_t sum = 0;
  for (const int32_t document : epoch_.rows.documents) sum += lengths_[static_cast<size_t>(document)];
  return sum;
}

int64_t BatchStream::steps_in_epoch(int64_t epoch) const {
  return steps_of_rows(rows_in_epoch(epoch), options_);
}

int64_t BatchStream::steps_from(const Cursor& from, double epochs) const {
  const int64_t window = options_.rows_per_step();
  const auto whole = static_cast<int64_t>(std::floor(epochs));
  const double rest = epochs - static_cast<double>(whole);
  int64_t sum = 0;
  for (int64_t epoch = from.epoch; epoch < whole || (epoch == whole && rest > 0); ++epoch) {
    const int64_t all = steps_in_epoch(epoch);
    const int64_t wanted =
        epoch < whole ? all : static_cast<int64_t>(std::ceil(rest * static_cast<double>(all)));
    const int64_t end = std::min(wanted * window, rows_in_epoch(epoch));
    // The window that is under way counts as one step that is still to come.
    const int64_t begin = epoch == from.epoch ? from.row - from.micro_batch * options_.world_size : 0;
    if (begin < end) {
      sum += rounded_up(end - begin, window);
    } else if (epoch == from.epoch && epoch < whole && from.micro_batch > 0) {
      ++sum;  // saved with more ranks: only rows of filler are left
    }
  }
  return sum;
}

double BatchStream::epoch_progress() const {
  const double rows = static_cast<double>(epoch_.rows.rows());
  return static_cast<double>(cursor_.epoch) + std::min(1.0, static_cast<double>(cursor_.row) / rows);
}

Batch BatchStream::next() {
  enter_epoch(cursor_.epoch);
  const int64_t rows = epoch_.rows.rows();
  const int64_t index = cursor_.row + options_.rank;
  Batch batch = index < rows
                    ? batch_of_row(set_, options_, epoch_.rows, epoch_.order[static_cast<size_t>(index)])
                    : make_batch(set_, {}, options_.max_tokens, options_.pad_id);
  cursor_.row += options_.world_size;
  if (++cursor_.micro_batch == options_.gradient_accumulation_steps) {
    cursor_.micro_batch = 0;
    ++cursor_.step;
    if (cursor_.row >= rows) {
      cursor_.row = 0;
      ++cursor_.epoch;
    }
  }
  return batch;
}

Cursor BatchStream::cursor() const {
  Cursor out = cursor_;
  out.fingerprint = fingerprint_;
  return out;
}

void BatchStream::seek(const Cursor& cursor) {
  if (cursor.fingerprint != fingerprint_) {
    throw Error(
        ErrorKind::data, "the data or its order is not that of the checkpoint",
        format("data fingerprint {}, checkpoint {}", fingerprint_, cursor.fingerprint),
        "use the same files, tokenizer, max_length, max_tokens, batching and data_seed, or start anew");
  }
  const EpochRows epoch = make_epoch(cursor.epoch);
  const int64_t window = options_.rows_per_step();
  const bool fits = cursor.micro_batch == 0 ? cursor.row < epoch.rows.rows()
                                            : cursor.micro_batch < options_.gradient_accumulation_steps &&
                                                  cursor.row < epoch.rows.rows() + window;
  if (!fits) {
    throw Error(ErrorKind::data,
                format("row {}, micro-batch {} does not exist in epoch {}", cursor.row, cursor.micro_batch,
                       cursor.epoch),
                "data cursor", "resume from another checkpoint");
  }
  epoch_ = epoch;
  cursor_ = cursor;
}

EvalBatches::EvalBatches(const TokenizedSet& set, StreamOptions options) : set_(set), options_(options) {
  const std::vector<int32_t> lengths = checked_lengths(set, options);
  rows_ = pack_in_windows(lengths, counting(set.size()), options.limits(), options.batching);
}

int64_t EvalBatches::max_segments() const {
  return segments_needed(rows_, options_.batching);
}

int64_t EvalBatches::size() const {
  return rounded_up(rows_.rows(), options_.world_size);
}

Batch EvalBatches::batch(int64_t i) const {
  DELTATUNE_ASSERT(i >= 0 && i < size());
  const int64_t row = i * options_.world_size + options_.rank;
  return row < rows_.rows() ? batch_of_row(set_, options_, rows_, row)
                            : make_batch(set_, {}, options_.max_tokens, options_.pad_id);
}

}  // namespace deltatune
