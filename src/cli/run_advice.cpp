// Facts from the folder, plans from the run's configuration, findings into the files.
#include "cli/run_advice.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/load.h"
#include "observe/metrics.h"
#include "observe/report.h"
#include "train/plan.h"
#include "train/recompute.h"

namespace deltatune::cli {
namespace {

using Changes = std::map<std::string, std::string>;

// Plans of the run's configuration with keys changed; every combination is planned once.
class Planner {
 public:
  Planner(const RunFolder& folder, const RunFacts& facts)
      : config_file_((folder.folder() / "config.resolved.yaml").string()),
        world_size_(facts.world_size),
        available_(facts.memory_available),
        card_(facts.card) {}

  std::optional<PlanSummary> operator()(const Changes& changes) {
    const auto found = done_.find(changes);
    if (found != done_.end()) return found->second;
    std::optional<PlanSummary> plan;
    try {
      plan = make(changes);
    } catch (const Error& error) {  // a model that has gone, a key of another version, a combination refused
      log::debug("no plan: {}", error.what());
      if (changes.empty()) {
        why_ = clean_text(
            format("{}{}", error.what(), error.where().empty() ? "" : " (" + error.where() + ")"), 300);
      }
    }
    done_.emplace(changes, plan);
    return plan;
  }

  /// Why there is no plan of the run as it is.
  const std::string& why() const { return why_; }

 private:
  PlanSummary make(const Changes& changes) {
    std::vector<CommandLine::Flag> flags;
    for (const auto& [key, value] : changes) flags.push_back({key, value, key});
    Config config = load(config_file_, flags, reader::train).config;
    config.nproc = static_cast<int64_t>(world_size_);
    config.nodes = 1;
    if (!source_) {
      const bool bare = !HfCheckpoint(config.model_name_or_path).has_weights();
      source_ =
          std::make_unique<ModelSource>(open_model(config.model_name_or_path, bare ? "random" : config.init));
    }
    const PlanReport report = make_plan(config, *source_, card_);
    PlanSummary out;
    out.step_s = report.seconds();
    out.recompute_s = report.recompute_seconds * static_cast<double>(report.accumulation);
    out.exposed_s = report.links.exposed_seconds;
    out.comm_bytes = report.comm.gather_bytes + report.comm.reduce_bytes;
    out.tokens = static_cast<double>(report.max_tokens * report.accumulation);
    out.memory = static_cast<double>(report.memory.total());
    const auto available = available_ > 0 ? available_ : static_cast<double>(report.memory_available);
    const Target target = card_ ? Target::cuda : Target::cpu;
    out.available = std::max(0.0, available - static_cast<double>(recompute_margin(target)));
    return out;
  }

  std::string config_file_;
  double world_size_;
  double available_;
  std::optional<DeviceCard> card_;
  std::unique_ptr<ModelSource> source_;
  std::map<Changes, std::optional<PlanSummary>> done_;
  std::string why_;
};

// In metrics.jsonl and in the log.
void tell(const RunFolder& folder, const Advice& advice) {
  if (advice.findings.empty()) return;
  const RunRecord& record = folder.record();
  MetricsWriter metrics(folder.folder() / "metrics.jsonl");
  for (const Finding& finding : advice.findings) {
    json::Value fields;
    if (!record.recent.empty()) fields.set("step", static_cast<int64_t>(record.recent.back().step));
    const json::Value members = to_json(finding);
    for (const auto& [key, value] : members.as_object()) fields.set(key, value);
    metrics.event("finding", fields);
  }
  const size_t shown = std::min<size_t>(3, advice.findings.size());
  for (size_t i = 0; i < shown; ++i) log::info("advice {}: {}", i + 1, to_line(advice.findings[i]));
  log::info("why, and what else: deltatune advise {}", folder.folder().string());
}

}  // namespace

Advice advice_on(const RunFolder& folder, Plans plans) {
  RunFacts facts = facts_of(folder);
  if (plans == Plans::computed) {
    const auto planner = std::make_shared<Planner>(folder, facts);
    if (!(*planner)({})) facts.no_plan = planner->why();
    facts.what_if = [planner](const Changes& changes) { return (*planner)(changes); };
  }
  return advise(facts);
}

void RunPage::operator()(bool ended) {
  folder_.refresh();
  const bool began = folder_.record().steps > 0 || folder_.record().nonfinite_steps > 0;
  const Advice advice = advice_on(folder_, ended && began ? Plans::computed : Plans::none);
  if (ended && began) tell(folder_, advice);
  write_report(folder_, findings_json(advice.findings));
}

}  // namespace deltatune::cli
