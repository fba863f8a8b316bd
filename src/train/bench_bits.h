// Does a step repeat bit for bit? The same row, the same weights, forward and backward again and again.
//
// Whole steps: after each the sum of squares (in double) of every parameter's gradient is compared with that
// of the second time. The parameters say where a difference is from: backward goes from the last block to the
// first, so the last block with one had it first; where all have, it was in forward.
// Op by op (graph: never): the same of everything that each op has written, after each op. It names the op,
// but the ops do not follow each other as closely as in a step.
// A kernel with a race, a library's algorithm that adds in another order, or a GPU that computes wrongly once
// in a while shows here. Not here: updates, several devices.
#pragma once

#include <string>
#include <vector>

#include "train/bench_step.h"

namespace deltatune {

struct BitsReport {
  int64_t rounds = 0;     ///< compared with the second
  int64_t different = 0;  ///< of them
  /// "round 17: 36 of 90 differ, first layers.7.gate_up 3.1e-07, ..."
  std::vector<std::string> lines;
};

/// "2 of 90 differ, first layers.7.gate_up 3.1e-07, layers.6.down 2.0e-08": the names of entries that are not
/// the same bits, eight at most, and by how much of `before`. Empty: all are.
std::string differences(const std::vector<std::string>& names, const std::vector<double>& before,
                        const std::vector<double>& now);

/// Of the first options.depths.back() layers. Op by op, rounds may have the ops alone that the glob names,
/// and `fill`, which makes sums start again. Throws what bench_step() throws.
BitsReport check_bits(Device& device, const BenchStepOptions& options, int64_t rounds,
                      const std::string& glob = "*");

}  // namespace deltatune
