// `deltatune train cfg.yaml`.
#include "cli/device.h"
#include "cli/verbs.h"
#include "train/run.h"

namespace deltatune::cli {

int verb_train(const Invocation& call) {
  const auto device = open_device(call.config());
  return run_training(*device, call.config(), {call.command_line, resolved_yaml(call.loaded)});
}

}  // namespace deltatune::cli
