// What stands before the data of a new .safetensors file: where each tensor lies, and the header that says
// so.
//
// Header as the safetensors library writes it: __metadata__ first, tensors in data order, padded with spaces
// to a multiple of 8 bytes. A pure function of its arguments, so that every rank of a run computes the same
// file. Not done here: writing (part_writer.h).
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"

namespace deltatune {

/// One tensor of a file to be written; dtype in safetensors spelling.
struct PlannedTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// The tensors one behind the other, in this order. Names must be unique, dtypes known and shapes sized
/// (assertions).
std::vector<StoredTensor> place_tensors(std::span<const PlannedTensor> plan);

/// All bytes before the data: length, JSON, padding.
std::string safetensors_head(std::span<const StoredTensor> tensors,
                             const Metadata& metadata = {{"format", "pt"}});

}  // namespace deltatune
