// A training run from start to end: model, data, memory, the loop with logging, evaluation, saving and
// resuming.
#pragma once

#include <string>

#include "tensor/device.h"
#include "train/config.h"

namespace deltatune {

/// What the command line knows beyond the Config.
struct RunContext {
  std::string command_line;
  std::string resolved_config;  ///< text of config.resolved.yaml
};

/// Runs `train` and returns the exit code: 0 done, 130 or 143 stopped by a signal with a checkpoint saved.
/// Throws Error for everything else; run.json then says so too.
int run_training(Device& device, const Config& config, const RunContext& context);

}  // namespace deltatune
