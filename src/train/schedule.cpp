// The four schedules.
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deltatune {

double Schedule::rate(int64_t done) const {
  const auto step = static_cast<double>(done);
  const auto warmup = static_cast<double>(warmup_steps);
  const double rest = std::max(1.0, static_cast<double>(total_steps - warmup_steps));
  if (type == "constant") return peak;
  if (done < warmup_steps) return peak * (step / std::max(1.0, warmup));
  if (type == "linear") return peak * std::max(0.0, (static_cast<double>(total_steps) - step) / rest);
  if (type == "cosine") {
    const double progress = (step - warmup) / rest;
    return peak * std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
  }
  return peak;
}

int64_t warmup_steps(int64_t steps, double ratio, int64_t total_steps) {
  if (steps > 0) return steps;
  return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * ratio));
}

}  // namespace deltatune
