// padding: slots of the rows hold no token.
//
// Model: a step takes as long as its slots, whatever is in them, so that tokens/s grow with the fill. Packed
// rows of conversations that are short against the row fill 97 % (low 92, high 99). Rows that are packed
// already fill more when they are longer: twice the slots halve what the last conversation of a row leaves
// free. The fill is of all steps where the events have their sums; where it is of some steps only, the range
// has twice its standard error on both sides and the confidence is low. Speaks below 90 %.
#include <algorithm>

#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::padding(const RunFacts& facts) {
  const double fill = facts.steps.fill;
  if (!(fill > 0 && fill < 0.9)) return std::nullopt;
  const std::string batching = facts.setting("batching");
  const double slots = facts.number("max_tokens");
  Finding out;
  out.title = "Slots are computed that hold no token";
  out.evidence = format("{:.0f} % of the slots hold tokens, {:.0f} of {:.0f} a step", 100 * fill,
                        facts.steps.real_tokens, facts.steps.slots);
  if (facts.data.length_p50 > 0 && slots > 0)
    out.evidence += format("; half of the conversations have up to {:.0f} tokens, a row has {:.0f} slots",
                           facts.data.length_p50, slots);
  const double error = facts.steps.fill_error;
  const bool sampled = facts.steps.told_steps <= 0.95 * facts.steps.run_steps;
  if (sampled)
    out.evidence +=
        format("; measured on {:.0f} of {:.0f} steps only, so that the fill may be off by {:.0f} %",
               facts.steps.told_steps, facts.steps.run_steps, 100 * error / fill);
  double reached = 0.97, low = 0.92, high = 0.99;
  if (batching == "padded" || batching == "sorted") {
    out.key = "batching";
    out.value = "packed";
    out.note = "no token sees another conversation in a packed row";
    out.confidence = Confidence::high;
  } else {
    out.key = "max_tokens";
    out.value = slots > 0 ? format("{:.0f}", 2 * slots) : "twice as many";
    out.note = "`deltatune data pack --compare` shows the fill, `deltatune plan` whether the memory suffices";
    reached = 1 - (1 - fill) / 2;
    low = fill + (reached - fill) / 2;
    high = 0.99;
    out.confidence = Confidence::low;
  }
  if (sampled) out.confidence = Confidence::low;
  const auto gain = [&](double then, double now) { return 100 * std::max(0.0, then / now - 1); };
  // Now as full as it may be, and as empty.
  out.gain = Gain{gain(reached, fill), gain(std::min(low, reached), std::min(1.0, fill + error)),
                  gain(std::max(high, reached), std::max(fill / 2, fill - error))};
  return out;
}

}  // namespace deltatune
