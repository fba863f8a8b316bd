// exposed_communication: the device waits for weights or gradients of other ranks.
//
// Model: the time E that communication shows goes with the bytes sent per token, so that a change which sends
// q times the bytes leaves q E. The plan counts the bytes of three changes: gradients on the wire in bf16,
// whole weights (shard: grads), rows of twice the slots; the first that fits and sends least is named. Low:
// half of that, high: none of E stays. Speaks from 3 % of the step on.
#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {
namespace {

struct Change {
  const char* key;
  std::string value;
  const char* note;
};

}  // namespace

std::optional<Finding> rules::exposed_communication(const RunFacts& facts) {
  const double share = facts.steps.exposed_comm;
  const double seconds = facts.steps.seconds;
  if (facts.world_size < 2 || !(share >= 0.03) || !(seconds > 0)) return std::nullopt;
  Finding out;
  out.title = "The device waits for other ranks";
  out.evidence = format("{:.1f} ms of {:.1f} ms a step ({:.1f} %) on {:.0f} ranks", 1e3 * share * seconds,
                        1e3 * seconds, 100 * share, facts.world_size);
  if (facts.profile && facts.profile->gather_ms >= 0 && facts.profile->reduce_ms >= 0)
    out.evidence += format("; gathering takes {:.1f} ms, reducing {:.1f} ms beside the compute",
                           facts.profile->gather_ms, facts.profile->reduce_ms);
  const double slots = facts.number("max_tokens");
  std::vector<Change> changes;
  if (facts.setting("reduce_dtype") != "bf16")
    changes.push_back({"reduce_dtype", "bf16", "sums of gradients are then rounded on their way"});
  if (facts.setting("shard") == "full")
    changes.push_back({"shard", "grads", "weights stay whole on each rank"});
  if (slots > 0)
    changes.push_back(
        {"max_tokens", format("{:.0f}", 2 * slots), "weights travel once for twice the tokens"});
  const auto now = facts.plan();
  double best = 0.95;
  for (const Change& change : changes) {
    const auto then = facts.plan({{change.key, change.value}});
    if (!now || !then || !then->fits() || !(now->comm_bytes > 0) || !(now->tokens > 0)) continue;
    const double ratio = then->comm_bytes / then->tokens / (now->comm_bytes / now->tokens);
    if (ratio >= best - 0.01) continue;
    best = ratio;
    out.key = change.key;
    out.value = change.value;
    out.note = change.note;
  }
  if (!out.key.empty()) {
    const double waits = share * seconds;
    const double saved = waits * (1 - best);
    out.gain = gain_of_saving(seconds, saved, saved / 2, waits);
  } else {
    out.note =
        "`deltatune plan --scaling` shows what each link carries; look at `deltatune doctor` for the "
        "transport";
  }
  out.confidence = out.key.empty() ? Confidence::low : Confidence::medium;
  return out;
}

}  // namespace deltatune
