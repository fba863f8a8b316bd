// slow_op: an op takes much longer than the same op did on this kind of device.
//
// Model: an op that takes t at a share r of the roofline takes t * r / b, b the share of baselines.h. Speaks
// for ops of 2 % of the step and more that are below 0.7 b, because shapes differ; matrix products below 0.8
// b. Low: half of that, high: all of it. Ops on plain kernels are slow_kernel's. Calls of less than 50 us are
// left out: the baselines are of large shapes, and a short call takes what a launch and one wave take.
#include <algorithm>

#include "advise/baselines.h"
#include "advise/rules.h"
#include "base/format.h"

namespace deltatune {
namespace {

constexpr double short_call_ms = 0.05;

struct OpTime {
  std::string op;
  double ms = 0;
  double least_ms = 0;
};

// By op, those rows that say what share of the roofline they reach.
std::vector<OpTime> op_times(const ProfileFacts& profile) {
  std::vector<OpTime> out;
  for (const ProfiledOp& row : profile.ops) {
    if (row.slow || !(row.roofline > 0) || row.device_ms < short_call_ms * row.calls) continue;
    auto found = std::find_if(out.begin(), out.end(), [&](const OpTime& op) { return op.op == row.op; });
    if (found == out.end()) found = out.insert(out.end(), {row.op});
    found->ms += row.device_ms;
    found->least_ms += row.device_ms * std::min(row.roofline, 1.0);
  }
  return out;
}

}  // namespace

std::optional<Finding> rules::slow_op(const RunFacts& facts) {
  if (!facts.profile || !facts.card || !(facts.profile->step_ms > 0)) return std::nullopt;
  const double step = facts.profile->step_ms;
  double saved = 0;
  std::string list;
  bool products = false;
  for (const OpTime& op : op_times(*facts.profile)) {
    const auto baseline = baseline_share(facts.card->name, op.op);
    if (!baseline || op.ms < 0.02 * step) continue;
    const double share = op.least_ms / op.ms;
    if (share >= (op.op == "matmul" ? 0.8 : 0.7) * *baseline) continue;
    const double usual = op.least_ms / *baseline;
    saved += op.ms - usual;
    products = products || op.op == "matmul";
    list += format("{}{} {:.1f} ms where {:.1f} are usual", list.empty() ? "" : ", ", op.op, op.ms, usual);
  }
  if (list.empty()) return std::nullopt;
  Finding out;
  out.title = format("Ops are slower than usual on {}", facts.card->title);
  out.evidence = list;
  out.gain = gain_of_saving(step, saved, 0.5 * saved, saved);
  if (products && facts.setting("matmul_tuning") == "off") {
    out.key = "matmul_tuning";
    out.value = "auto";
  } else {
    out.note =
        "compare with `deltatune bench op`: shapes may be unusual, the clock low, or another job on the "
        "device";
  }
  out.confidence = Confidence::low;
  return out;
}

}  // namespace deltatune
