// utilisation: the driver shows a busy device, the arithmetic says that little of it is used.
//
// NVML's utilisation is the share of time in which at least one kernel runs, however small. Speaks at 85 %
// and more of it with less than 20 % MFU (the Databricks post: 98 % at 4.5 %). Predicts nothing by itself:
// the rules for launches, slow kernels and padding name causes; where the meter knows the least time of the
// step's own work, the distance to it is stated as what could be gained at most.
#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::utilisation(const RunFacts& facts) {
  double busy = facts.steps.utilisation;
  if (std::isnan(busy)) {
    for (const DeviceTelemetry& device : facts.devices) {
      if (std::isnan(busy) || device.utilisation > busy) busy = device.utilisation;
    }
  }
  if (!(busy >= 0.85) || !(facts.steps.mfu < 0.2)) return std::nullopt;
  Finding out;
  out.title = "The device is busy, but not with the model's arithmetic";
  out.evidence = format("utilisation {:.0f} % at {:.1f} % MFU", 100 * busy, 100 * facts.steps.mfu);
  if (facts.steps.roofline > 0)
    out.evidence += format("; the step's own work would take {:.0f} % of its time at the device's rates",
                           100 * facts.steps.roofline);
  out.note = facts.profile ? "the op table of the report shows what runs instead"
                           : "`deltatune profile` shows what runs instead: many small kernels, or slow ones";
  out.confidence = Confidence::high;
  return out;
}

}  // namespace deltatune
