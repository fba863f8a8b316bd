// Evaluation over packed rows.
#include "train/evaluate.h"

#include "base/clock.h"
#include "comm/exchange.h"

namespace deltatune {

EvalResult evaluate(Engine& engine, const TokenizedSet& set, const StreamOptions& options,
                    const std::function<void(int64_t, int64_t)>& progress) {
  const Stopwatch clock;
  const EvalBatches batches(set, options);
  EvalResult result;
  for (int64_t i = 0; i < batches.size(); ++i) {
    const Batch batch = batches.batch(i);
    if (batch.num_targets > 0 || engine.comm().world_size() > 1) result.loss_sum += engine.evaluate(batch);
    result.targets += batch.num_targets;
    result.tokens += batch.real_tokens;
    if (progress) progress(i + 1, batches.size());
  }
  result.loss_sum = sum_over_ranks(engine.comm(), result.loss_sum);
  sum_over_ranks(engine.comm(), {&result.targets, &result.tokens});
  result.seconds = clock.seconds();
  return result;
}

}  // namespace deltatune
