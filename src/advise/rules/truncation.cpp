// truncation: conversations are longer than max_length and lose their end, or are left out.
//
// Nothing is predicted: it is about what the model sees. The proposed length is the next power of two that 99
// % of the rows stay below, where the plan says that rows of that many slots fit. Speaks from 1 % of the
// rows, or of the tokens, on.
#include <algorithm>

#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {

std::optional<Finding> rules::truncation(const RunFacts& facts) {
  const DataFacts& data = facts.data;
  const double lost = data.truncated + data.dropped;
  const double cut = data.tokens_cut / (data.tokens + data.tokens_cut);
  if (!(data.rows > 0) || !(lost >= 0.01 * data.rows || cut >= 0.01) || !(lost > 0)) return std::nullopt;
  Finding out;
  out.severity = Severity::quality;
  out.title = "Conversations are cut or left out";
  out.evidence = format("{:.0f} of {:.0f} rows are cut, {:.0f} dropped: {:.1f} % of the tokens",
                        data.truncated, data.rows, data.dropped, 100 * cut);
  if (data.length_p99 > 0)
    out.evidence += format("; 99 % of the rows have at most {:.0f} tokens, the longest {:.0f}",
                           data.length_p99, data.length_max);
  out.confidence = Confidence::high;
  const double limit = facts.number("max_length");
  double wanted = 1;
  while (wanted < data.length_p99 && wanted < 1e9) wanted *= 2;
  if (!(limit > 0) || !(wanted > limit)) {
    out.note = "the cut rows are among the longest 1 %; `deltatune data show` shows where their end is";
    return out;
  }
  out.key = "max_length";
  out.value = format("{:.0f}", wanted);
  const double slots = facts.number("max_tokens");
  if (slots > 0 && wanted > slots) {
    const auto then = facts.plan({{"max_length", out.value}, {"max_tokens", out.value}});
    out.note = format("with max_tokens: {}", out.value);
    if (then) {
      out.note += then->fits()
                      ? format(", which fits: {:.1f} GiB", then->memory / double(1 << 30))
                      : format(", which does not fit ({:.1f} GiB); overflow: split keeps the text instead",
                               then->memory / double(1 << 30));
    }
  }
  return out;
}

}  // namespace deltatune
