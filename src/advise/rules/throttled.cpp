// throttled: a device runs below its clock because of power or heat.
//
// Model: compute goes with the clock, so that a device which is throttled for a share h of the time and runs
// at c of its highest clock c_max on average loses h (1 - c / c_max), which telemetry sums up as
// "lost_share"; all ranks wait for the slowest. Low: half of it (what is bound by memory does not mind),
// high: all. Speaks from 2 % lost on.
#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::throttled(const RunFacts& facts) {
  const DeviceTelemetry* worst = nullptr;
  double lost = 0.02;
  for (const DeviceTelemetry& device : facts.devices) {
    double here = device.lost_share;
    if (std::isnan(here)) here = device.throttled_share * (1 - device.sm_clock_mhz / device.sm_clock_max_mhz);
    if (!(here >= lost)) continue;
    lost = here;
    worst = &device;
  }
  if (worst == nullptr || !(lost < 1)) return std::nullopt;
  Finding out;
  out.title = format("GPU {} runs below its clock", worst->index);
  out.evidence = format("throttled {:.0f} % of the time, {:.0f} of {:.0f} MHz on average",
                        100 * worst->throttled_share, worst->sm_clock_mhz, worst->sm_clock_max_mhz);
  if (!worst->reasons.empty()) out.evidence += format(" ({})", worst->reasons);
  if (!std::isnan(worst->temperature_c)) out.evidence += format(", {:.0f} degrees C", worst->temperature_c);
  out.note =
      "the power limit or the cooling: `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE` on that machine";
  out.gain = gain_of_saving(1, lost, lost / 2, lost);
  out.confidence = Confidence::medium;
  return out;
}

}  // namespace deltatune
