// Rows that are closed exactly: the completion step of batching: packed.
//
// Row by row: the longest document that is left opens a row, then the longest that fits follows, until one,
// two or three of the remaining lengths fill what is left of the row to the last slot. Pairs and triples are
// found in a bit set of the lengths that remain, 64 candidates at a time: y + z = S is bit y of the set and
// of its mirror image, shifted by S. Of several the most even one is taken, as lengths near the middle are
// the most numerous: extreme lengths stay for rows that nothing else closes.
// Deterministic: the work is bounded by a count of words looked at, never by a clock. Once it is used up
// (only lengths that admit no exact row do that) rows are filled with the longest that fits.
#pragma once

#include <cstdint>
#include <span>

#include "data/packer.h"

namespace deltatune {

/// lengths: of every document, each in [1, T]. order: the documents to pack; of equal lengths those that come
/// first in it are placed first. Every document of `order` lies in exactly one row.
PackedRows pack_exact_fit(std::span<const int32_t> lengths, std::span<const int32_t> order,
                          const PackLimits& limits);

}  // namespace deltatune
