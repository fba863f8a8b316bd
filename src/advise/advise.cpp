// Running the rules, sorting what they say.
#include "advise/advise.h"

#include <algorithm>

#include "advise/rules.h"
#include "base/counted.h"
#include "base/format.h"

namespace deltatune {
namespace {

constexpr rules::NamedRule rule_table[] = {
    {"launch_bound", rules::launch_bound},
    {"utilisation", rules::utilisation},
    {"slow_kernel", rules::slow_kernel},
    {"slow_op", rules::slow_op},
    {"padding", rules::padding},
    {"recompute", rules::recompute},
    {"memory_headroom", rules::memory_headroom},
    {"exposed_communication", rules::exposed_communication},
    {"data_stall", rules::data_stall},
    {"truncation", rules::truncation},
    {"few_supervised", rules::few_supervised},
    {"throttled", rules::throttled},
    {"unbalanced_ranks", rules::unbalanced_ranks},
    {"loss_trouble", rules::loss_trouble},
};

// What a finding promises, weighed by how sure it is: a guess of 80 % comes behind a measured 50.
double promise(const Finding& finding) {
  if (!finding.gain) return -1;
  const double weight = finding.confidence == Confidence::high     ? 1
                        : finding.confidence == Confidence::medium ? 0.75
                                                                   : 0.4;
  return weight * finding.gain->expected;
}

bool before(const Finding& a, const Finding& b) {
  const bool first = a.severity == Severity::problem, second = b.severity == Severity::problem;
  if (first != second) return first;
  return promise(a) > promise(b);
}

void look(Advice& advice, bool there, const std::string& what, const std::string& how) {
  if (there) {
    advice.looked_at.push_back(what);
  } else {
    advice.missing.push_back(how);
  }
}

}  // namespace

std::span<const rules::NamedRule> rules::all() {
  return rule_table;
}

json::Array findings_json(const std::vector<Finding>& findings) {
  json::Array out;
  for (const Finding& finding : findings) out.push_back(to_json(finding));
  return out;
}

Advice advise(const RunFacts& facts) {
  Advice out;
  for (const rules::NamedRule& named : rule_table) {
    auto finding = named.rule(facts);
    if (!finding) continue;
    finding->rule = named.name;
    out.findings.push_back(std::move(*finding));
  }
  std::stable_sort(out.findings.begin(), out.findings.end(), before);
  out.damaged = facts.damaged;
  // A file that is damaged is not said to be absent.
  const auto is_damaged = [&](std::string_view file) {
    return std::any_of(facts.damaged.begin(), facts.damaged.end(),
                       [&](const std::string& note) { return note.starts_with(file); });
  };
  if (facts.steps.steps > 0 || !is_damaged("metrics.jsonl ")) {
    look(out, facts.steps.steps > 0,
         facts.steps.steps == 1 ? "the last logged step"
                                : format("the last {} logged steps", facts.steps.steps),
         facts.failure.empty() ? "no logged step in metrics.jsonl"
                               : "no logged step: the run ended with: " + facts.failure);
  }
  if (facts.profile || !is_damaged("profile.json ")) {
    look(out, facts.profile.has_value(), "a profile of a step",
         "no profile: `deltatune profile` writes one, and says where the time of a step goes");
  }
  look(out, !facts.devices.empty(),
       "telemetry of " + counted(static_cast<int64_t>(facts.devices.size()), "device"),
       "no telemetry: clocks are not known");
  look(out, !std::isnan(facts.data.rows), "counts of the data",
       facts.steps.steps > 0 ? "no counts of the data: a run that streams does not know them"
                             : "no counts of the data");
  const bool planned = facts.plan().has_value();
  if (planned || !is_damaged("config.resolved.yaml ")) {
    look(out, planned, "plans of other settings",
         "no plan: " + (facts.no_plan.empty()
                            ? "the model or the configuration of the run is not there any more"
                            : facts.no_plan));
  }
  return out;
}

json::Value Advice::to_json() const {
  json::Value out;
  out.set("findings", findings_json(findings));
  out.set("looked_at", json::Array(looked_at.begin(), looked_at.end()));
  out.set("missing", json::Array(missing.begin(), missing.end()));
  out.set("damaged", json::Array(damaged.begin(), damaged.end()));
  return out;
}

std::string Advice::to_text() const {
  std::string out;
  for (size_t i = 0; i < findings.size(); ++i)
    out += format("{}. {}\n\n", i + 1, deltatune::to_text(findings[i]));
  if (findings.empty()) out += "nothing to say\n\n";
  std::string list;
  for (const std::string& text : looked_at) list += (list.empty() ? "" : ", ") + text;
  out += format("looked at: {}; {} rules\n", list.empty() ? "nothing" : list, std::size(rule_table));
  for (const std::string& text : damaged) out += format("damaged:   {}\n", text);
  for (const std::string& text : missing) out += format("missing:   {}\n", text);
  return out;
}

}  // namespace deltatune
