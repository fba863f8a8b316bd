// `deltatune profile cfg.yaml`: the run of `train`, for as many steps as the profiler's schedule has, without
// checkpoints, evaluation, metrics or a model; then the tables on stdout.
#include <algorithm>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/verbs.h"
#include "train/profiler.h"

namespace deltatune::cli {

int verb_profile(const Invocation& call) {
  Invocation run = call;
  Config& config = run.loaded.config;
  config.profile_only = true;
  if (config.profile == "off") {
    // A configuration's "off" is about `train`; on this command line it can only be a mistake.
    const auto origin = run.loaded.origins.find("profile");
    if (origin != run.loaded.origins.end() && origin->second.source.starts_with("flag ")) {
      throw Error(ErrorKind::usage, "a profile without profiling", origin->second.source,
                  "leave --profile out, or give ops or trace; `deltatune train` runs without a profiler");
    }
    config.profile = "trace";
  }
  const ProfileSchedule schedule{config.profile_wait, config.profile_warmup, config.profile_active,
                                 config.profile_repeat};
  config.max_steps = schedule.steps() + schedule.untraced();
  config.logging_steps = 1;
  config.save_steps = 0;
  config.eval_steps = 0;
  config.eval_dataset.clear();
  log::info(
      "profile: {}{} of waiting, {} of warm-up, {} traced; then {} without tracing, to see what "
      "it costs",
      schedule.repeat == 1 ? "" : format("{} times ", schedule.repeat), counted(schedule.wait, "step"),
      schedule.warmup, schedule.active, schedule.untraced());
  return verb_train(run);
}

}  // namespace deltatune::cli
