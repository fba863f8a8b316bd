// RunFacts: the figures of a run that rules look at, as plain values.
//
// Assembled from an output folder (facts_of) or written down by a test. NaN and empty: not known; a rule that
// needs what is not known stays silent. Not here: how a change of a key changes the plan; that is a function
// which the caller hands in, because only `train` can compute a plan.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "observe/device_card.h"
#include "observe/run_folder.h"
#include "observe/series.h"

namespace deltatune {

inline constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

/// Of the last logged steps, the first of the run left out where there are more. Times are of one step.
struct StepMeans {
  int64_t steps = 0;                                                 ///< that the figures are of
  double seconds = unknown;                                          ///< median
  double slots = unknown, real_tokens = unknown, targets = unknown;  ///< means, all ranks
  double fill = unknown;        ///< real tokens / slots, of all steps that events tell of
  double run_steps = unknown;   ///< steps of the run from the first to the last of these
  double told_steps = unknown;  ///< of those, how many have their slots in an event
  double fill_error = 0;        ///< twice the standard error of fill, where it is of a sample of the steps
  double data_wait = unknown, exposed_comm = unknown, host_bound = unknown;  ///< shares of all step time
  double mfu = unknown, roofline = unknown, utilisation = unknown;           ///< medians, 0 to 1
};

/// One row of a profile.
struct ProfiledOp {
  std::string op, shape, phase, kernel;
  bool slow = false;
  double calls = 0;
  double device_ms = 0;       ///< of a step
  double roofline = unknown;  ///< least time on the card / time
};

struct ProfileFacts {
  std::string device;
  bool gpu = true;
  int rank = 0;
  double step_ms = unknown, busy_ms = unknown, host_bound_ms = unknown, data_wait_ms = unknown;
  double launches = unknown, kernels = unknown;
  double gather_ms = unknown, reduce_ms = unknown, exposed_ms = unknown;
  bool graph = false;
  std::vector<ProfiledOp> ops;
};

/// Telemetry of one device, means of the run.
struct DeviceTelemetry {
  int64_t index = 0;
  double utilisation = unknown;
  double sm_clock_mhz = unknown, sm_clock_max_mhz = unknown;
  double throttled_share = unknown;
  double lost_share = unknown;  ///< of its compute, by lowered clocks
  double temperature_c = unknown;
  std::string reasons;  ///< "sw_power_cap"
};

/// Counts of run.json's "data"; NaN where it has none.
struct DataFacts {
  double rows = unknown, conversations = unknown, truncated = unknown, dropped = unknown,
         all_masked = unknown;
  double tokens = unknown, supervised = unknown, tokens_cut = unknown;
  double length_p50 = unknown, length_p99 = unknown, length_max = unknown;
};

/// What a plan says of a configuration, for one device.
struct PlanSummary {
  double step_s = 0;                 ///< roofline of the compute; 0 without a device card
  double recompute_s = 0;            ///< of it, of the whole step
  double exposed_s = 0;              ///< of communication, not in step_s
  double comm_bytes = 0;             ///< sent in a step
  double tokens = 0;                 ///< slots of a step
  double memory = 0, available = 0;  ///< bytes
  bool fits() const { return memory <= available; }
};

/// The plan of the run's configuration with these keys changed; nothing where no plan can be made.
using WhatIf = std::function<std::optional<PlanSummary>(const std::map<std::string, std::string>& changes)>;

struct RunFacts {
  std::map<std::string, std::string> settings;  ///< key -> value
  std::map<std::string, std::string> kernels;   ///< op -> "wgmma", "plain, slow (not cudnn: ...)"
  std::string recompute;                        ///< none, cheap, block or auto: what the run chose
  double world_size = 1;
  StepMeans steps;
  bool slow_kernels = false;  ///< a log line said so
  std::vector<Point> loss, grad_norm;
  int64_t nonfinite_steps = 0;
  double nonfinite_step = unknown;                      ///< the first, where it says so
  std::string nonfinite_where;                          ///< where it began, as its event says; or empty
  double memory = unknown, memory_available = unknown;  ///< bytes of one device, as planned
  DataFacts data;
  std::vector<DeviceTelemetry> devices;
  std::optional<ProfileFacts> profile;      ///< rank 0's
  std::vector<ProfileFacts> rank_profiles;  ///< all ranks', where there are several
  std::optional<DeviceCard> card;
  WhatIf what_if;                    ///< may be empty
  std::string failure;               ///< the error that the run ended with; or empty
  std::string no_plan;               ///< why what_if gives none, where that is known
  std::vector<std::string> damaged;  ///< files that cannot be read: which, what is wrong, what to do

  std::string setting(const std::string& key) const;
  double number(const std::string& key) const;  ///< of a setting, or NaN
  /// Nothing without what_if, too.
  std::optional<PlanSummary> plan(const std::map<std::string, std::string>& changes = {}) const;
};

/// Everything but what_if.
RunFacts facts_of(const RunFolder& folder);
/// Of a profile.json; nothing where it is none (no list of ops, no time of a step).
std::optional<ProfileFacts> profile_facts(const json::Value& profile);

}  // namespace deltatune
