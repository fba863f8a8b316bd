// advise: the rules over the facts of a run.
#pragma once

#include <string>
#include <vector>

#include "advise/finding.h"
#include "advise/run_facts.h"

namespace deltatune {

struct Advice {
  /// Problems first, then what gains most, then what gains nothing that can be told.
  std::vector<Finding> findings;
  std::vector<std::string> looked_at;  ///< "120 logged steps", "a profile of rank 0", ...
  std::vector<std::string> missing;    ///< "no profile: ..." with how to get it
  std::vector<std::string> damaged;    ///< "profile.json cannot be read: ...; what to do"

  /// {"findings": [...], "looked_at": [...], "missing": [...], "damaged": [...]}
  json::Value to_json() const;
  std::string to_text() const;
};

Advice advise(const RunFacts& facts);

/// The findings as `finding` events' members, for the report.
json::Array findings_json(const std::vector<Finding>& findings);

}  // namespace deltatune
