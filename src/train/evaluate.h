// Evaluation: the mean loss over every supervised target of a set, each conversation once.
#pragma once

#include <functional>

#include "data/batch_stream.h"
#include "train/engine.h"

namespace deltatune {

struct EvalResult {
  double loss_sum = 0;
  int64_t targets = 0;
  int64_t tokens = 0;  ///< of documents
  double seconds = 0;
  /// Mean over targets, whatever the rows they were packed into.
  double loss() const { return targets > 0 ? loss_sum / static_cast<double>(targets) : 0; }
};

/// `progress(done, total)` is called after each row and may be empty. Between accumulation windows only.
EvalResult evaluate(Engine&, const TokenizedSet&, const StreamOptions&,
                    const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace deltatune
