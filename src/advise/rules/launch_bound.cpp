// launch_bound: the device waits for the host to launch.
//
// Model: in a step of S seconds the device idles H because nothing is launched yet. From a CUDA graph all
// kernels are there, so that a step takes max(S - H, B), B the device's busy time. Low: a third of H stays
// (the parts of a step between its graphs). High: S = B. H is the meter's share of the logged steps, which
// nothing slows down; without it the profile's. Speaks from 5 % on.
#include <algorithm>

#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::launch_bound(const RunFacts& facts) {
  const bool profiled = facts.profile && facts.profile->gpu && facts.profile->step_ms > 0;
  double seconds = facts.steps.seconds;
  double waits = seconds * facts.steps.host_bound;
  double busy = 0;
  if (profiled && std::isnan(waits)) {
    seconds = facts.profile->step_ms * 1e-3;
    waits = facts.profile->host_bound_ms * 1e-3;
  }
  if (profiled && facts.profile->busy_ms > 0) busy = std::min(facts.profile->busy_ms * 1e-3, seconds);
  if (!(waits >= 0.05 * seconds)) return std::nullopt;
  Finding out;
  out.title = "The device waits for the host to launch kernels";
  out.evidence = format("{:.1f} ms of {:.1f} ms a step ({:.0f} %) the device had nothing to run", waits * 1e3,
                        seconds * 1e3, 100 * waits / seconds);
  if (profiled && facts.profile->launches > 0)
    out.evidence += format("; {:.0f} launches for {:.0f} kernels a step", facts.profile->launches,
                           facts.profile->kernels);
  const double saved = std::min(waits, seconds - busy);
  out.gain = gain_of_saving(seconds, saved, 0.67 * saved, busy > 0 ? std::max(saved, seconds - busy) : saved);
  const std::string graph = facts.setting("cuda_graph");
  if (profiled && facts.profile->graph) {
    out.key = "max_tokens";
    const double tokens = facts.number("max_tokens");
    out.value = tokens > 0 ? format("{:.0f}", 2 * tokens) : "twice as many";
    out.note = "the step is replayed from graphs already: longer rows give each launch more to do";
    out.confidence = Confidence::low;
  } else {
    out.key = "cuda_graph";
    out.value = "true";
    out.note =
        graph == "false" ? "" : "the run did not use graphs by itself; with true it says why where it cannot";
    out.confidence = profiled ? Confidence::high : Confidence::medium;
  }
  return out;
}

}  // namespace deltatune
