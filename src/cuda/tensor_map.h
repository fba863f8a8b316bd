// Tensor maps: what the bulk copy engine of sm_90 is told about a tensor in memory, so that one thread can
// copy a box of it to shared memory.
#pragma once

#include <cuda.h>

#include "tensor/tensor.h"

namespace deltatune::cuda {

/// Of x [T, H, 128], bf16, 16-byte aligned: boxes of 64 rows of T, one head and 64 columns, written as 64
/// rows of 128 bytes with 16-byte piece p of row r at p ^ (r % 8), zeros beyond T. Coordinates: column, head,
/// row. Throws Error{internal} where the driver refuses.
CUtensorMap head_tiles(const CTensor& x_THD);

}  // namespace deltatune::cuda
