// Mixture: how often the conversations of each dataset appear in an epoch (dataset_weights).
//
// A dataset of n conversations and weight w gives round(n * w) uses to every epoch, at least one: each of its
// conversations appears floor(uses / n) times, and uses % n of them once more. Which ones: the next in a
// drawn order of the dataset that goes round and round from epoch to epoch. So weight 0.5 shows one half in
// the first epoch and the other half in the second, and over any number of epochs no conversation is used
// more than once more often than another of its dataset. A pure function of (parts, seed, epoch).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace deltatune {

/// Conversations [begin, end) of a set: those of one dataset.
struct MixturePart {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
  double weight = 1;

  int64_t size() const { return end - begin; }
  /// Uses in one epoch. [0 for an empty part]
  int64_t uses() const;
};

/// Parts cover [0, count) in order, and weights are in (0, 1000] (assertions). Throws Error{usage} when an
/// epoch would have more than 2^31 - 1 uses.
void check_mixture(std::span<const MixturePart> parts, int64_t count);

/// The conversations of an epoch in file order, as often as they appear in it. No parts: each of `count`
/// once.
std::vector<int32_t> mixed_documents(std::span<const MixturePart> parts, int64_t count, uint64_t seed,
                                     int64_t epoch);

}  // namespace deltatune
