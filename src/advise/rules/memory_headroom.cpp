// memory_headroom: much of the memory is free, and longer rows would use the device better.
//
// Model: the plan's roofline of a step with twice the slots (and half the accumulation, where there is some,
// which leaves the recipe as it is) gives the ratio of tokens/s; fixed costs of a step - the update, weights
// read or sent - then serve more tokens. Low: half of the gain, high: one and a half times. Speaks where a
// third of the memory is free, the longer row fits with a tenth to spare and the gain is 2 % or more.
#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::memory_headroom(const RunFacts& facts) {
  if (!(facts.memory < 0.67 * facts.memory_available)) return std::nullopt;
  const double slots = facts.number("max_tokens");
  const double rows = facts.number("gradient_accumulation_steps");
  const auto now = facts.plan();
  if (!(slots > 0) || !now || !(now->step_s > 0)) return std::nullopt;
  std::map<std::string, std::string> changes = {{"max_tokens", format("{:.0f}", 2 * slots)}};
  const bool halve = rows >= 2 && std::fmod(rows, 2) == 0;
  if (halve) changes["gradient_accumulation_steps"] = format("{:.0f}", rows / 2);
  const auto then = facts.plan(changes);
  if (!then || !(then->step_s > 0) || then->memory > 0.9 * then->available) return std::nullopt;
  const auto rate = [](const PlanSummary& plan) { return plan.tokens / (plan.step_s + plan.exposed_s); };
  const double gain = 100 * (rate(*then) / rate(*now) - 1);
  if (gain < 2) return std::nullopt;
  Finding out;
  out.title = "Memory is left for longer rows";
  out.evidence = format("{:.1f} of {:.1f} GiB are planned; rows of {:.0f} slots need {:.1f} GiB",
                        facts.memory / double(1 << 30), facts.memory_available / double(1 << 30), 2 * slots,
                        then->memory / double(1 << 30));
  out.key = "max_tokens";
  out.value = changes["max_tokens"];
  out.note = halve ? format("with gradient_accumulation_steps: {:.0f} a step has the tokens it had", rows / 2)
                   : "a step then has twice the tokens: fewer steps, and perhaps another learning rate";
  out.gain = Gain{gain, gain / 2, 1.5 * gain};
  out.confidence = Confidence::low;
  return out;
}

}  // namespace deltatune
