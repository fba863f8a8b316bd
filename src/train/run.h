// A training run from start to end: model, data, memory, the loop with logging, evaluation, saving and
// resuming.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"
#include "comm/rank_status.h"
#include "tensor/device.h"
#include "train/config.h"

namespace deltatune {

/// What the command line knows beyond the Config.
struct RunContext {
  std::string command_line;
  std::string resolved_config;   ///< text of config.resolved.yaml
  RankStatus* status = nullptr;  ///< where the rank says what it does; nullptr: nowhere
  /// Writes report.html: every few seconds, and with true when the run has ended, well or not (run.json says
  /// so then). Empty: write_report() of observe/report.h. May throw Error.
  std::function<void(bool ended)> report = {};
};

/// Runs `train` as one rank of `comm` and returns the exit code: 0 done, 130 or 143 stopped by a signal with
/// a checkpoint saved. Throws Error for everything else; run.json then says so too. Only rank 0 logs and
/// writes, but for its part of checkpoints.
int run_training(Device& device, Communicator& comm, const Config& config, const RunContext& context);

}  // namespace deltatune
