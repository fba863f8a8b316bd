// `deltatune profile cfg.yaml`: the run of `train`, for as many steps as the profiler's schedule has, without
// checkpoints, evaluation, metrics or a model; then the tables on stdout.
#include <algorithm>

#include "base/format.h"
#include "base/log.h"
#include "cli/verbs.h"
#include "train/profiler.h"

namespace deltatune::cli {

int verb_profile(const Invocation& call) {
  Invocation run = call;
  Config& config = run.loaded.config;
  config.profile_only = true;
  if (config.profile == "off") config.profile = "trace";
  const ProfileSchedule schedule{config.profile_wait, config.profile_warmup, config.profile_active,
                                 config.profile_repeat};
  config.max_steps = schedule.steps() + schedule.untraced();
  config.logging_steps = 1;
  config.save_steps = 0;
  config.eval_steps = 0;
  config.eval_dataset.clear();
  log::info(
      "profile: {} times {} steps of waiting, {} of warm-up, {} traced; then {} without tracing, to see what "
      "it costs",
      schedule.repeat, schedule.wait, schedule.warmup, schedule.active, schedule.untraced());
  return verb_train(run);
}

}  // namespace deltatune::cli
