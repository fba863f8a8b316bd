// Learning-rate schedules, equal to transformers' get_scheduler (optimization.py): the rate of optimizer step
// n (from 0) is the peak times a factor of n.
#pragma once

#include <cstdint>
#include <string>

namespace deltatune {

struct Schedule {
  std::string type = "cosine";  ///< constant | constant_with_warmup | linear | cosine
  double peak = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  /// Rate of the update that follows `done` finished updates: the first update of a warmed-up run has rate 0,
  /// as with LambdaLR.
  double rate(int64_t done) const;
};

/// warmup_steps > 0 wins; else ceil(ratio * total), as TrainingArguments.get_warmup_steps.
int64_t warmup_steps(int64_t steps, double ratio, int64_t total_steps);

}  // namespace deltatune
