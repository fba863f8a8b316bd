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

/// Of x [T, ...], bf16, rows of 16 bytes or a multiple: boxes of `rows` rows of T and `columns` (at most 256)
/// elements of the rest, one row behind the other, zeros before and beyond T. Coordinates: column, row.
/// Throws Error{internal} where the driver refuses.
CUtensorMap row_tiles(const CTensor& x_TN, int columns, int rows);

}  // namespace deltatune::cuda
