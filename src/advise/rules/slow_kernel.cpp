// slow_kernel: an op is served by its plain kernel, which is right and slow.
//
// Model: an op that takes t at a share r of the roofline takes t * r / f with a kernel made for the device,
// where f is the share that this op was measured at (baselines.h) or else a half. Low: f / 2, high: 1.
// Without a profile the op is named and nothing is predicted.
#include <algorithm>
#include <set>

#include "advise/baselines.h"
#include "advise/rules.h"
#include "base/counted.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::slow_kernel(const RunFacts& facts) {
  std::set<std::string> names;
  std::string reason;
  for (const auto& [op, kernel] : facts.kernels) {
    if (kernel.find(", slow") == std::string::npos) continue;
    names.insert(op);
    if (const size_t why = kernel.find('('); why != std::string::npos && reason.empty())
      reason = kernel.substr(why);
  }
  double time = 0, saved = 0, low = 0, high = 0;
  if (facts.profile) {
    for (const ProfiledOp& op : facts.profile->ops) {
      if (!op.slow) continue;
      names.insert(op.op);
      time += op.device_ms;
      if (!(op.roofline > 0)) continue;
      const double share = baseline_share(facts.card ? facts.card->name : "", op.op).value_or(0.5);
      const auto saving = [&](double of) { return op.device_ms * std::max(0.0, 1 - op.roofline / of); };
      saved += saving(share);
      low += saving(share / 2);
      high += saving(1);
    }
  }
  if (names.empty() && !facts.slow_kernels) return std::nullopt;
  if (facts.profile && time > 0 && time < 0.01 * facts.profile->step_ms) return std::nullopt;
  Finding out;
  out.title = "Plain, slow kernels are in use";
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  out.evidence = names.empty()
                     ? "every logged step says slow_kernels: 1 or more ops have only their plain kernel"
                     : counted(static_cast<int64_t>(names.size()), "op") + ": " + list;
  if (time > 0) out.evidence += format("; {:.1f} of {:.1f} ms a step", time, facts.profile->step_ms);
  if (!reason.empty()) out.evidence += " " + reason;
  if (saved > 0) out.gain = gain_of_saving(facts.profile->step_ms, saved, low, high);
  if (facts.setting("dtype") == "f32") {
    out.key = "dtype";
    out.value = "bf16";
    out.note = "f32 has only plain kernels on a GPU";
  } else {
    out.note =
        "`deltatune doctor` shows which library is missing; docs/kernels.md has what each kernel needs";
  }
  out.confidence = saved > 0 ? Confidence::medium : Confidence::low;
  return out;
}

}  // namespace deltatune
