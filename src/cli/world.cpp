// Which communicator a rank gets.
#include "cli/world.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "build_info.h"
#include "cli/device.h"
#include "comm/cuda_communicator.h"
#include "comm/host_group.h"
#include "comm/mpi_plugin.h"
#include "ops/cuda_plugin.h"

namespace deltatune::cli {
namespace {

constexpr size_t longest_agreement = 30000;

constexpr std::array<std::string_view, 17> free_keys = {"model_name_or_path",
                                                        "tokenizer_name_or_path",
                                                        "chat_template",
                                                        "dataset",
                                                        "eval_dataset",
                                                        "dataset_cache",
                                                        "output_dir",
                                                        "run_name",
                                                        "report_to",
                                                        "logging_dir",
                                                        "progress",
                                                        "nproc",
                                                        "max_restarts",
                                                        "rank_status",
                                                        "resume_from_checkpoint",
                                                        "logging_steps",
                                                        "ddp_timeout"};

std::unique_ptr<Communicator> join_gpus(Device& device, std::unique_ptr<HostGroup> group,
                                        const Config& config) {
  std::string why;
  const CudaPlugin* plugin = cuda_plugin(why);
  DELTATUNE_ASSERT(plugin != nullptr);  // it has made the device
  CommOptions options;
  options.timeout = std::chrono::seconds(config.ddp_timeout);
  if (config.comm_transport == "peer") options.transport = CommTransport::peer;
  if (config.comm_transport == "nccl") options.transport = CommTransport::nccl;
  return plugin->make_communicator(device, std::move(group), options);
}

}  // namespace

std::string agreement_of(const Loaded& loaded) {
  // Where a value comes from may differ, and is not shown without origins.
  const std::string all = resolved_yaml({loaded.config, {}, {}});
  std::string out;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    std::string_view line = std::string_view(all).substr(at, end - at);
    at = end + 1;
    const std::string_view key = line.substr(0, line.find(':'));
    const bool free = std::find(free_keys.begin(), free_keys.end(), key) != free_keys.end();
    if (line.empty() || line[0] == '#' || free) continue;
    line = line.substr(0, line.rfind(" # "));
    line = line.substr(0, line.find_last_not_of(' ') + 1);
    out.append(line).append("\n");
  }
  return out.size() <= longest_agreement ? out
                                         : "configuration: " + Hasher().update(std::string_view(out)).hex();
}

World open_world(const Loaded& loaded, const Launch& launch) {
  const Config& config = loaded.config;
  World out;
  if (launch.world_size == 1 || !wants_gpu(config)) {
    out.device = open_device(config, launch.local_rank);
    out.comm = launch.world_size == 1 ? make_solo_communicator()
                                      : make_mpi_communicator(launch.rank, launch.world_size,
                                                              std::chrono::seconds(config.ddp_timeout));
    return out;
  }
  // First the meeting: when a rank fails from here on, the others notice at once.
  HostGroupOptions options;
  options.timeout = std::chrono::seconds(config.ddp_timeout);
  options.version = std::string(build_info::version) + " (" + build_info::commit + ")";
  options.agreement = agreement_of(loaded);
  std::unique_ptr<HostGroup> group = join_host_group(launch, options);
  out.device = open_device(config, launch.local_rank);
  out.comm = join_gpus(*out.device, std::move(group), config);
  return out;
}

}  // namespace deltatune::cli
