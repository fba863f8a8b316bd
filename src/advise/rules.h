// The rules: each looks at the facts of a run and says nothing, or makes one finding. Pure functions; what a
// rule sees and how it predicts is in the first comment of its file in src/advise/rules.
#pragma once

#include <optional>
#include <span>

#include "advise/finding.h"
#include "advise/run_facts.h"

namespace deltatune::rules {

using Rule = std::optional<Finding>(const RunFacts&);

Rule launch_bound, utilisation, slow_kernel, slow_op, padding, recompute, memory_headroom,
    exposed_communication, data_stall, truncation, few_supervised, throttled, unbalanced_ranks, loss_trouble;

struct NamedRule {
  const char* name;
  Rule* rule;
};

/// All of them.
std::span<const NamedRule> all();

}  // namespace deltatune::rules
