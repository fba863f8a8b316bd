// Batch: one micro-batch of one rank, host side: a 1-D row of exactly T token slots.
//
// Documents lie one after the other; unused slots are filler segments (pad id, no targets) of their own, so
// that nothing of a document reaches them or the other way round. Only packed rows have a single filler, as
// the last segment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace deltatune {

struct Batch {
  std::vector<int32_t> tokens;  ///< [T]
  /// [T] shifted already: logits at t predict targets[t], the label of token t + 1 if that token belongs to
  /// the same document and is supervised, else -100.
  std::vector<int32_t> targets;
  std::vector<int32_t> positions;   ///< [T] from 0 in every segment
  std::vector<int32_t> cu_seqlens;  ///< [segments + 1] from 0 to T, strictly increasing
  int64_t documents = 0;            ///< segments that are no filler
  int64_t real_tokens = 0;          ///< slots that are no filler
  int64_t num_targets = 0;          ///< targets that are not -100
  std::vector<int32_t> lengths;     ///< of the documents, in order, without filler
  int64_t row = -1;                 ///< row of the epoch (or of the evaluation); -1: a row of filler only
};

/// Lays out documents of `set` in the given order. padded_to: slots per document, 0 for its own length.
/// The documents must fit T (an assertion). An empty list gives a row of filler only.
Batch make_batch(const TokenizedSet& set, std::span<const int32_t> documents, int64_t max_tokens,
                 int32_t pad_id, int32_t padded_to = 0);

}  // namespace deltatune
