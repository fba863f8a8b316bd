// Sums over ranks whose order never changes: ((rank 0 + rank 1) + rank 2) + ..., element by element.
#pragma once

#include <span>

#include "tensor/tensor.h"

namespace deltatune {

/// chunk += the sum of parts, in chunk's dtype (f32 or f64); parts have chunk's count and may be narrower.
void add_ordered(Tensor chunk, std::span<const CTensor> parts);
/// x = the sum of parts, likewise; x may be one of them.
void sum_ordered(Tensor x, std::span<const CTensor> parts);

}  // namespace deltatune
