// `deltatune train cfg.yaml`: on one rank, as one of the ranks that a launcher has started, or as the
// supervisor of ranks that it starts itself.
#include "base/error.h"
#include "base/format.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "cli/device.h"
#include "cli/rank_supervisor.h"
#include "cli/run_advice.h"
#include "cli/verbs.h"
#include "cli/world.h"
#include "comm/launch.h"
#include "comm/rank_status.h"
#include "ops/cuda_plugin.h"
#include "train/run.h"

namespace deltatune::cli {
namespace {

int train_as_rank(const Invocation& call, const Launch& launch, RankStatus* status) {
  Config config = call.config();
  config.rank = launch.rank;
  config.world_size = launch.world_size;
  config.local_world_size = launch.local_world_size;
  if (!config.dry_run) config.nproc = launch.world_size;
  log::set_rank(launch.rank, launch.world_size);
  if (launch.rank > 0) log::set_level(log::Level::error);  // what it would warn of, rank 0 has said
  const Heartbeat heartbeat("starting");
  if (status != nullptr && status->resume()) config.resume_from_checkpoint = "true";
  const World world = open_world(call.loaded, launch);
  return run_training(*world.device, *world.comm, config,
                      {call.command_line, resolved_yaml(call.loaded), status, RunPage(config.output_dir)});
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

int supervise(const Invocation& call) {
  const Config& config = call.config();
  RankJob job;
  job.words = call.words;
  job.ranks = static_cast<int>(config.nproc);
  job.max_restarts = config.max_restarts;
  const bool gpu = wants_gpu(config);
  job.mpi = !gpu && job.ranks > 1;
  if (gpu && gpu_count() == 0) make_cuda_device(0);  // says why there is none
  if (gpu && job.ranks > 1 && gpu_count() < job.ranks) {
    throw Error(ErrorKind::resource,
                format("{} ranks are wanted, this machine shows {} GPUs", job.ranks, gpu_count()), "nproc",
                "lower nproc, or look at CUDA_VISIBLE_DEVICES and `deltatune doctor`");
  }
  return run_ranks(job);
}

}  // namespace

int verb_train(const Invocation& call) {
  const Config& config = call.config();
  const Launch launch = config.dry_run ? Launch{} : launch_of_environment();
  if (!config.rank_status.empty()) return train_supervised(call, launch);
  const bool alone = launch.launcher.empty() && !config.dry_run;
  if (alone && (config.nproc > 1 || config.max_restarts > 0)) return supervise(call);
  return train_as_rank(call, launch, nullptr);
}

}  // namespace deltatune::cli
