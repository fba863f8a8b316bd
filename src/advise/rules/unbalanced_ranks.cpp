// unbalanced_ranks: one rank takes longer than the others, which wait for it.
//
// Model: the step ends when the busiest rank does. Were all as busy as their mean, it would take (max - mean)
// less. Low: half of that, high: as the least busy one. Speaks from 4 % of the step on, from the profiles of
// at least two ranks.
#include <algorithm>

#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::unbalanced_ranks(const RunFacts& facts) {
  double sum = 0, least = 1e300;
  const ProfileFacts* slowest = nullptr;
  double count = 0;
  for (const ProfileFacts& rank : facts.rank_profiles) {
    if (!(rank.busy_ms > 0)) continue;
    ++count;
    sum += rank.busy_ms;
    least = std::min(least, rank.busy_ms);
    if (slowest == nullptr || rank.busy_ms > slowest->busy_ms) slowest = &rank;
  }
  if (count < 2 || !(slowest->step_ms > 0)) return std::nullopt;
  const double saved = slowest->busy_ms - sum / count;
  if (saved < 0.04 * slowest->step_ms) return std::nullopt;
  Finding out;
  out.title = format("Rank {} holds the others up", slowest->rank);
  out.evidence =
      format("its device is busy {:.1f} ms of a step of {:.1f} ms, the mean of {:.0f} ranks is {:.1f} ms",
             slowest->busy_ms, slowest->step_ms, count, sum / count);
  double fastest_clock = 0, its_clock = unknown;
  for (const DeviceTelemetry& device : facts.devices) {
    if (device.sm_clock_mhz > fastest_clock) fastest_clock = device.sm_clock_mhz;
    if (device.index == slowest->rank) its_clock = device.sm_clock_mhz;
  }
  if (its_clock < 0.97 * fastest_clock) {
    out.note = format("its GPU runs at {:.0f} MHz, another at {:.0f}: look at its power and cooling",
                      its_clock, fastest_clock);
    out.confidence = Confidence::medium;
  } else {
    out.note =
        "compare the op tables of the ranks: more documents of great length in its rows, or a slower device";
    out.confidence = Confidence::low;
  }
  out.gain = gain_of_saving(slowest->step_ms, saved, saved / 2, slowest->busy_ms - least);
  return out;
}

}  // namespace deltatune
