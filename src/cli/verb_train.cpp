// `deltatune train cfg.yaml`: on one rank, as one of the ranks that a launcher has started, or as the
// supervisor of ranks that it starts itself.
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/device.h"
#include "cli/rank_supervisor.h"
#include "cli/verbs.h"
#include "comm/launch.h"
#include "comm/mpi_plugin.h"
#include "comm/rank_status.h"
#include "train/run.h"

namespace deltatune::cli {
namespace {

std::unique_ptr<Communicator> open_world(const Device& device, const Launch& launch, const Config& config) {
  if (launch.world_size == 1) return make_solo_communicator();
  if (device.target() != Target::cpu) {
    throw Error(
        ErrorKind::usage,
        format("training on {} GPUs is not supported in this version of deltatune", launch.world_size),
        "nproc", "train on one GPU, or on several ranks of the CPU with device: cpu");
  }
  return make_mpi_communicator(launch.rank, launch.world_size, std::chrono::seconds(config.ddp_timeout));
}

int train_as_rank(const Invocation& call, const Launch& launch, RankStatus* status) {
  Config config = call.config();
  config.rank = launch.rank;
  config.world_size = launch.world_size;
  config.local_world_size = launch.local_world_size;
  if (!config.dry_run) config.nproc = launch.world_size;
  log::set_rank(launch.rank, launch.world_size);
  if (launch.rank > 0) log::set_level(log::Level::error);  // what it would warn of, rank 0 has said
  const auto device = open_device(config);
  const auto comm = open_world(*device, launch, config);
  return run_training(*device, *comm, config, {call.command_line, resolved_yaml(call.loaded), status});
}

// A rank with a supervisor leaves its last words to it.
int train_supervised(const Invocation& call, const Launch& launch) {
  RankStatus status = RankStatus::join(call.config().rank_status, launch.rank);
  try {
    return train_as_rank(call, launch, &status);
  } catch (const Error& error) {
    status.fail(error);
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    status.fail(Error(ErrorKind::resource, "out of memory", "host",
                      "see what `deltatune plan` says, or free memory on this machine"));
    return exit_code(ErrorKind::resource);
  }
}

}  // namespace

int verb_train(const Invocation& call) {
  const Config& config = call.config();
  const Launch launch = config.dry_run ? Launch{} : launch_of_environment();
  if (!config.rank_status.empty()) return train_supervised(call, launch);
  if (launch.launcher.empty() && config.nproc > 1 && !config.dry_run) {
    if (config.device == "cuda") {
      throw Error(ErrorKind::usage,
                  format("training on {} GPUs is not supported in this version of deltatune", config.nproc),
                  "nproc", "train on one GPU, or on several ranks of the CPU with device: cpu");
    }
    return run_ranks(call.words, static_cast<int>(config.nproc));
  }
  return train_as_rank(call, launch, nullptr);
}

}  // namespace deltatune::cli
