// few_supervised: hardly any token has a target.
//
// Nothing is predicted: tokens/s stay, but each step learns from few of them. Speaks below 10 % of the
// tokens, or where a twentieth of the rows has no target at all and is left out.
#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::few_supervised(const RunFacts& facts) {
  double share = facts.data.supervised / facts.data.tokens;
  if (std::isnan(share)) share = facts.steps.targets / facts.steps.real_tokens;
  const double empty = facts.data.all_masked / facts.data.rows;
  if (!(share < 0.1) && !(empty >= 0.05)) return std::nullopt;
  Finding out;
  out.severity = Severity::quality;
  out.title = "Few tokens are trained";
  out.evidence = format("{:.1f} % of the tokens have a target", 100 * share);
  if (empty > 0)
    out.evidence +=
        format("; {:.0f} of {:.0f} rows have none and are left out", facts.data.all_masked, facts.data.rows);
  const std::string train_on = facts.setting("train_on");
  if (train_on == "last") {
    out.key = "train_on";
    out.value = "assistant";
    out.note = "every turn of the assistant counts then, not the last alone";
    out.confidence = Confidence::medium;
  } else {
    out.note =
        "`deltatune data show` marks the trained tokens: long prompts, or a mask that misses the answers";
    out.confidence = Confidence::low;
  }
  return out;
}

}  // namespace deltatune
