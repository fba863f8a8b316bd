// The pieces of a saved model that one rank writes.
//
// Trained tensors are converted to the file's dtype, rounding to nearest even (f64 through f32 to the half
// types); of each, a rank writes the elements that it has. All other tensors (vision tower, mtp.*, ...) are
// copied as bytes, in turn by all ranks; rank 0 writes the heads. Together the pieces of all ranks cover
// every file once, and the files do not depend on the number of ranks. Invariants: no NaN and no infinity is
// ever written for a trained tensor; nothing is gathered. Not done here: which files there are
// (weight_files.h), writing them (part_writer.h), config.json and other side files (side_files.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "io/part_writer.h"
#include "io/weight_files.h"
#include "tensor/param_source.h"

namespace deltatune {

/// The trained tensors, as far as this rank has them.
class PartSource {
 public:
  /// Elements [first, first + count) of a tensor.
  struct Part {
    int64_t first = 0;
    int64_t count = 0;
  };
  virtual ~PartSource() = default;
  /// Shape of the whole tensor, and the dtype of its values in memory; nullptr: there is no such tensor.
  virtual const TensorInfo* find(std::string_view name) const = 0;
  virtual Part part(std::string_view name) const = 0;
  /// The values of elements [first, first + count), which lie in part(name): in `scratch`, which has room for
  /// them, or elsewhere. From several threads at once, each with its own stream.
  virtual const std::byte* values(std::string_view name, int64_t first, int64_t count, std::byte* scratch,
                                  Stream& stream) const = 0;
};

/// The pieces of `rank`; FilePiece::file counts WeightFiles::files. The arguments must outlive them. Filling
/// a piece throws Error{diverged} (NaN or infinity in memory), Error{model} (a value out of the file dtype's
/// range).
std::vector<FilePiece> weight_pieces(const WeightFiles& files, const HfCheckpoint* source,
                                     std::span<const TensorInfo> trained, const PartSource& values, int rank,
                                     int world_size);

}  // namespace deltatune
