// A part of a set held out for evaluation (val_size).
#pragma once

#include <cstdint>
#include <utility>

#include "data/dataset.h"

namespace deltatune {

/// Throws Error{usage} when `size` leaves none of `count` conversations to train on; at_most: `count` is a
/// bound on the rows, and the message says so.
void check_hold_out(double size, int64_t count, bool at_most = false);

/// The set without the held-out conversations, and those. size < 1: that fraction (at least one
/// conversation); size >= 1: that many conversations. Which ones is a pure function of (number of
/// conversations, seed). Counts of rows that were left out stay with the first. Throws Error{usage} when
/// nothing would be left to train on.
std::pair<TokenizedSet, TokenizedSet> hold_out(const TokenizedSet& set, double size, uint64_t seed);

}  // namespace deltatune
