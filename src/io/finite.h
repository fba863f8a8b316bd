// Counting NaN and infinity in stored tensors: before training (a source that has them is reported) and
// before saving (they are never written).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tensor/dtype.h"

namespace deltatune {

class HfCheckpoint;

struct NonFinite {
  int64_t nan = 0;
  int64_t infinite = 0;
  int64_t first = -1;  ///< index of the first one, -1: there is none
  bool any() const { return first >= 0; }
};

/// Looks at every element; `bytes` may be unaligned. Integer dtypes have none.
NonFinite count_nonfinite(DType dtype, std::span<const std::byte> bytes);

/// Reads these tensors of a checkpoint once. Throws Error{model} listing each tensor that holds NaN or
/// infinity, with the counts. Names that the checkpoint lacks are passed over.
void check_finite(const HfCheckpoint& checkpoint, std::span<const std::string> names);

}  // namespace deltatune
