// launch_bound: the device can only go as fast as the host launches.
//
// Model: for a share h of a step of S seconds launches set the pace (the meter counts a stretch whole, though
// the device works in between). From a CUDA graph all kernels are there, so that such a stretch takes what
// the device is busy. Waits for data that are no longer than that go, too: a host that is ahead has the next
// rows ready. The step takes S - min(h S + min(h S, D), S - B - R), B the busy time of the profile, D and R
// the waits for data and for ranks. Low: D stays and of the rest a third (the parts between graphs); high:
// nothing but B is left. Without a profile B is taken for the step's least time by the meter's roofline /
// 0.75 (low 0.5, high 0.9); without both nothing is predicted. h S is the meter's or the profile's share of
// time in which the device idled while the host worked, whichever is more: the profile sees the shortest
// gaps, the meter all steps. Speaks from 5 % of S on, and where 3 % of S can be saved.
#include <algorithm>

#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

namespace {

// Of a step, in seconds.
struct Times {
  double step = unknown;
  double paced = unknown;                              // h S
  double busy = unknown, busy_high = 0, busy_low = 0;  // B, and what it may be
  double data = 0, ranks = 0;                          // D, R
};

Times times_of(const RunFacts& facts) {
  Times out;
  const bool profiled = facts.profile && facts.profile->gpu && facts.profile->step_ms > 0;
  out.step = facts.steps.seconds;
  out.paced = out.step * facts.steps.host_bound;
  const auto share = [](double value) { return value > 0 ? value : 0; };
  out.data = out.step * share(facts.steps.data_wait);
  out.ranks = out.step * share(facts.steps.exposed_comm);
  if (profiled && facts.profile->host_bound_ms > 0) {
    if (std::isnan(out.paced)) {
      out.step = facts.profile->step_ms * 1e-3;
      out.paced = 0;
      out.data = out.ranks = 0;
    }
    out.paced = std::max(out.paced, out.step * facts.profile->host_bound_ms / facts.profile->step_ms);
  }
  if (profiled && facts.profile->busy_ms > 0) {
    out.busy = out.busy_high = out.busy_low = facts.profile->busy_ms * 1e-3;
  } else if (facts.steps.roofline > 0) {
    const double least = facts.steps.roofline * out.step;
    out.busy = least / 0.75;
    out.busy_high = least / 0.5;
    out.busy_low = least / 0.9;
  }
  return out;
}

}  // namespace

std::optional<Finding> rules::launch_bound(const RunFacts& facts) {
  const Times times = times_of(facts);
  const double step = times.step;
  if (!(times.paced >= 0.05 * step)) return std::nullopt;
  const auto saved = [&](double busy) {
    return std::min(times.paced + std::min(times.paced, times.data), step - busy - times.ranks);
  };
  const auto surely_saved = [&](double busy) {
    return std::min(times.paced, step - busy - times.data - times.ranks);
  };
  const bool known = !std::isnan(times.busy);
  if (known && surely_saved(times.busy) < 0.03 * step) return std::nullopt;
  const bool profiled = facts.profile && facts.profile->gpu;
  Finding out;
  out.title = "The device waits for the host to launch kernels";
  out.evidence = format("for {:.1f} of {:.1f} ms a step ({:.0f} %) the host's launches set the pace",
                        times.paced * 1e3, step * 1e3, 100 * times.paced / step);
  if (profiled && known) out.evidence += format("; the device is busy for {:.1f} ms", times.busy * 1e3);
  if (profiled && facts.profile->launches > 0)
    out.evidence +=
        format("; {:.0f} launches for {:.0f} kernels", facts.profile->launches, facts.profile->kernels);
  if (known) {
    const double low = profiled ? 0.67 * surely_saved(times.busy) : surely_saved(times.busy_high);
    const double high = profiled ? step - times.busy : saved(times.busy_low);
    out.gain = gain_of_saving(step, saved(times.busy), low, high);
  }
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
    out.confidence = profiled ? Confidence::high : Confidence::low;
  }
  return out;
}

}  // namespace deltatune
