// loss_trouble: the loss is not finite, or jumps.
//
// A jump is a logged loss above the median of the 32 points before it by more than 8 times their median
// distance from it, half of it, and a quarter of the median of the run's first 32 points: rows of few tokens
// scatter, most of all when the loss is low already. Curves are thinned but keep their extremes, so that none
// is missed. Speaks at the first non-finite step, which is a problem, and from 2 jumps on, which cost
// quality. Nothing is predicted.
#include <algorithm>

#include "advise/rules.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/median.h"

namespace deltatune {
namespace {

constexpr size_t window = 32;

struct Jumps {
  int64_t count = 0;
  Point highest;
  double usual = 0;  // before the highest
};

Jumps jumps_of(const std::vector<Point>& loss) {
  Jumps out;
  std::vector<double> before;
  bool inside = false;  // several points of one jump count once
  double first_level = 0;
  for (const Point& point : loss) {
    if (std::isnan(point.y)) continue;
    if (before.size() == window) {
      const double middle = median(before);
      if (first_level == 0) first_level = std::fabs(middle);
      std::vector<double> distances;
      distances.reserve(window);
      for (const double y : before) distances.push_back(std::fabs(y - middle));
      const double bound =
          middle + std::max({8 * median(distances), 0.5 * std::fabs(middle), 0.25 * first_level});
      if (point.y > bound) {
        if (!inside) ++out.count;
        inside = true;
        if (out.usual == 0 || point.y - middle > out.highest.y - out.usual)
          out.highest = point, out.usual = middle;
        continue;
      }
      before.erase(before.begin());
    }
    inside = false;
    before.push_back(point.y);
  }
  return out;
}

// The change to make: clipping where there is none, else half the learning rate.
void propose(const RunFacts& facts, Finding& out) {
  if (facts.number("max_grad_norm") == 0 && facts.setting("gradient_release") != "true") {
    out.key = "max_grad_norm";
    out.value = "1.0";
    return;
  }
  const double rate = facts.number("learning_rate");
  if (!(rate > 0)) return;
  out.key = "learning_rate";
  out.value = format("{:.3g}", rate / 2);
}

}  // namespace

std::optional<Finding> rules::loss_trouble(const RunFacts& facts) {
  Finding out;
  out.severity = Severity::problem;
  if (facts.nonfinite_steps > 0) {
    out.title = "The loss or a gradient is not finite";
    out.evidence = counted(facts.nonfinite_steps, "step");
    if (!std::isnan(facts.nonfinite_step)) {  // an event may lack it
      out.evidence = facts.nonfinite_steps == 1
                         ? format("in step {:.0f}", facts.nonfinite_step)
                         : format("{}, the first is {:.0f}", out.evidence, facts.nonfinite_step);
    }
    if (!facts.nonfinite_where.empty()) out.evidence += format("; where it began: {}", facts.nonfinite_where);
    double norm = unknown;  // the last one before
    for (const Point& point : facts.grad_norm) {
      if (point.x < facts.nonfinite_step && !std::isnan(point.y)) norm = point.y;
    }
    if (!std::isnan(norm)) out.evidence += format("; the gradient norm was {:.3g} before", norm);
    out.note = "look at the rows of that step with `deltatune data show`";
    out.confidence = Confidence::medium;
    propose(facts, out);
    return out;
  }
  const Jumps jumps = jumps_of(facts.loss);
  if (jumps.count < 2) return std::nullopt;
  out.title = "The loss jumps";
  out.severity = Severity::quality;
  out.evidence = format("{} times; the highest is {:.3g} at step {:.0f}, where {:.3g} was usual", jumps.count,
                        jumps.highest.y, jumps.highest.x, jumps.usual);
  out.note = "single rows can do that too: `deltatune data check`";
  out.confidence = Confidence::low;
  propose(facts, out);
  return out;
}

}  // namespace deltatune
