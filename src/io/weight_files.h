// Which weight files a saved model has, and where in them each tensor lies.
//
// With a source: the same files, each with the same head (names, order, shapes, dtypes, offsets,
// __metadata__), so a save without a training step gives weight files equal byte for byte; the index is made
// anew: total_size, names sorted. Without one: files of at most max_shard_bytes of tensors, named as
// transformers names them.
// A pure function of its arguments: all ranks compute the same files and write their parts of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint_reader.h"
#include "tensor/param_source.h"

namespace deltatune {

struct WeightFile {
  std::string name;
  std::string head;                   ///< all bytes before the data
  std::vector<StoredTensor> tensors;  ///< by their place
  size_t size = 0;                    ///< of the whole file
};

struct WeightFiles {
  std::vector<WeightFile> files;
  std::string index;  ///< text of the index; empty: there is none
  /// nullptr: there is no tensor of that name.
  const StoredTensor* find(std::string_view name) const;
};

/// `source`: nullptr, or without weights: a new checkpoint of exactly the `trained` tensors, in this order
/// and with these dtypes. Otherwise `trained` are those of the source's tensors that training changes. Throws
/// Error{model}: the source lacks one of them, or stores one as integers.
WeightFiles plan_weight_files(const HfCheckpoint* source, std::span<const TensorInfo> trained,
                              int64_t max_shard_bytes);

}  // namespace deltatune
