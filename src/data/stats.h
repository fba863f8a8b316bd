// What `deltatune data stats` prints: numbers about a TokenizedSet and the rows it packs into.
//
// Length percentiles are of rows before overflow (so truncation can be judged), by the nearest-rank method:
// the smallest length that at least p % of the rows do not exceed. Fill and steps are those of epoch 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/batch_stream.h"
#include "data/dataset.h"

namespace deltatune {

struct LengthStats {
  int64_t count = 0;
  int64_t min = 0;
  int64_t p50 = 0;
  int64_t p90 = 0;
  int64_t p99 = 0;
  int64_t max = 0;
  double mean = 0;
};

struct DataStats {
  DatasetCounts counts;
  LengthStats lengths;  ///< tokens per row, before overflow
  int64_t max_length = 0;
  int64_t max_tokens = 0;       ///< T
  int64_t rows = 0;             ///< packed rows of an epoch
  int64_t steps_per_epoch = 0;  ///< with the given world size and accumulation
  int64_t steps = 0;            ///< of all epochs asked for
  double epochs = 1;
  double fill = 0;              ///< real tokens / (rows x T), filler rows of the last step left out
  double supervised_share = 0;  ///< targets / tokens
  double documents_per_row = 0;
  int64_t held_out = 0;       ///< conversations left to evaluation (val_size)
  std::string fingerprint;    ///< of the set
  std::string chat_template;  ///< where it came from, for the caller to set; empty: none

  /// Counts per reason appear under "skipped"; shares are numbers between 0 and 1.
  json::Value to_json() const;
  /// For people: one fact per line, without newlines. Reasons with a count of 0 are left out.
  std::vector<std::string> to_lines() const;
};

/// {"system": 3, "user": 10, ...}: messages by role.
json::Value messages_json(const DatasetCounts& counts);

/// What run.json keeps of a dataset: counts, lengths, and under "histogram" [upper edge, rows] by powers of
/// two of the rows' lengths before overflow.
json::Value dataset_json(const TokenizedSet& set);

/// Nearest-rank percentile, 0 < percent <= 100; `sorted` ascending, not empty.
int64_t percentile(const std::vector<int32_t>& sorted, double percent);

/// Counts and lengths are of `set`, rows and steps of `trained`, the part of it that is not held out.
/// `epochs`: num_train_epochs, may be fractional.
DataStats data_stats(const TokenizedSet& set, const TokenizedSet& trained, const StreamOptions& options,
                     int64_t max_length, double epochs);

}  // namespace deltatune
