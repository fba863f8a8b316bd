// data_stall: steps wait for their rows.
//
// Model: rows that are there when the step wants them cost nothing, so that a step of S seconds that waits W
// takes S - W. Low: half of W, high: all of it. Speaks from 2 % of the step on.
#include <algorithm>

#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::data_stall(const RunFacts& facts) {
  const double seconds = facts.steps.seconds;
  const double share = facts.steps.data_wait;
  if (!(share >= 0.02) || !(seconds > 0)) return std::nullopt;
  Finding out;
  out.title = "Steps wait for data";
  out.evidence =
      format("{:.1f} ms of {:.1f} ms a step ({:.1f} %)", 1e3 * share * seconds, 1e3 * seconds, 100 * share);
  const double waits = share * seconds;
  out.gain = gain_of_saving(seconds, waits, waits / 2, waits);
  if (facts.setting("streaming") == "true") {
    out.key = "streaming";
    out.value = "false";
    out.note = "rows are then tokenised once, before the first step, and kept in the cache";
    out.confidence = Confidence::medium;
  } else {
    const double ahead = facts.number("dataloader_prefetch_factor");
    out.key = "dataloader_prefetch_factor";
    out.value = format("{:.0f}", ahead >= 0 ? std::max(4.0, 4 * ahead) : 8);
    out.note = "more rows ahead bridge stalls; where the host is short of cores they cannot";
    out.confidence = Confidence::low;
  }
  return out;
}

}  // namespace deltatune
