// recompute: activations are computed a second time although there is memory to keep them.
//
// Model: a step of S seconds spends R on recomputing: the profile's rows of phase "recompute", else the
// plan's share of it times S. Another policy with recompute time R' saves R * (1 - R'/R), R' and whether it
// fits from its plan. Low: 0.75 of that, high: 1.1. On a CPU low is 0.2 and the confidence low: R is the time
// that the host took for the ops of a few traced steps, other programs' share of the cores included, and what
// is kept comes from memory where what is computed again comes from the cache (user time of a run falls as
// predicted there, its wall time on a shared machine anything from that to not at all). Tries none, then
// auto. Speaks from 2 % on.
#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::recompute(const RunFacts& facts) {
  const std::string policy = facts.setting("recompute");
  if (facts.recompute == "none" || policy == "none" || policy == "auto") return std::nullopt;
  const auto now = facts.plan();
  if (!now || !(facts.steps.seconds > 0)) return std::nullopt;
  double spent = 0;  // R
  bool measured = false;
  const bool cpu = facts.profile && !facts.profile->gpu;
  if (facts.profile && facts.profile->step_ms > 0) {
    for (const ProfiledOp& op : facts.profile->ops) {
      if (op.phase == "recompute") spent += op.device_ms;
    }
    measured = spent > 0;
    spent *= facts.steps.seconds / facts.profile->step_ms;
  }
  if (!measured && now->step_s > 0) spent = facts.steps.seconds * now->recompute_s / now->step_s;
  for (const char* other : {"none", "auto"}) {
    const auto then = facts.plan({{"recompute", other}});
    if (!then || !then->fits() || (now->recompute_s > 0 && then->recompute_s >= now->recompute_s)) continue;
    const double kept = now->recompute_s > 0 ? then->recompute_s / now->recompute_s : 0;
    const double saved = spent * (1 - kept);
    if (saved < 0.02 * facts.steps.seconds) continue;
    Finding out;
    out.title = "Activations are computed twice with memory to spare";
    out.evidence =
        format("recompute: {} takes {:.1f} ms of {:.1f} ms a step{}; {} needs {:.1f} GiB, {:.1f} are there",
               policy, spent * 1e3, facts.steps.seconds * 1e3, measured ? "" : " (planned)", other,
               then->memory / double(1 << 30), then->available / double(1 << 30));
    out.key = "recompute";
    out.value = other;
    out.gain = gain_of_saving(facts.steps.seconds, saved, (cpu ? 0.2 : 0.75) * saved, 1.1 * saved);
    out.confidence = cpu ? Confidence::low : measured ? Confidence::high : Confidence::medium;
    if (cpu) {
      out.note =
          "on a CPU the times of single ops are less sure: other programs have a part in them, and kept "
          "activations are read from memory";
    }
    return out;
  }
  return std::nullopt;
}

}  // namespace deltatune
