// What the ranks' GPUs can do together.
#include "cuda/comm/transport.h"

#include <cuda_runtime_api.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cuda/check.h"
#include "cuda/comm/nccl.h"
#include "cuda/comm/peer_communicator.h"
#include "cuda/comm/peer_kernels.h"

namespace deltatune::cuda {
namespace {

std::string bus_id() {
  int device = 0;
  DELTATUNE_CUDA(cudaGetDevice(&device));
  std::array<char, 32> text{};
  DELTATUNE_CUDA(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device));
  return text.data();
}

// Empty, or why this rank's GPU does not reach those of the others.
std::string unreachable(const std::vector<std::string>& buses, int rank) {
  int own = 0;
  DELTATUNE_CUDA(cudaGetDevice(&own));
  for (size_t r = 0; r < buses.size(); ++r) {
    if (r == static_cast<size_t>(rank) || buses[r] == buses[static_cast<size_t>(rank)]) continue;
    int device = 0;
    int reaches = 0;
    if (cudaDeviceGetByPCIBusId(&device, buses[r].c_str()) != cudaSuccess) {
      cudaGetLastError();
      return "rank " + std::to_string(rank) + " does not see the GPU of rank " + std::to_string(r);
    }
    DELTATUNE_CUDA(cudaDeviceCanAccessPeer(&reaches, own, device));
    if (reaches == 0) {
      return "the GPU of rank " + std::to_string(rank) + " cannot read the memory of rank " +
             std::to_string(r) + "'s";
    }
  }
  return "";
}

// The same on all ranks: why copies between the GPUs do not serve them, or nothing.
std::string why_no_peers(HostGroup& group, CommTransport wanted) {
  if (group.local_world_size() != group.world_size()) return "the ranks are on several hosts";
  if (group.world_size() > max_peers) return "more than " + std::to_string(max_peers) + " ranks";
  const std::vector<std::string> buses = group.exchange(bus_id());
  for (size_t a = 0; a < buses.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      // On one GPU ranks take turns: for tests of the transport, not for use.
      if (buses[a] != buses[b] || wanted == CommTransport::peer) continue;
      throw Error(
          ErrorKind::usage,
          "ranks " + std::to_string(b) + " and " + std::to_string(a) + " have one GPU (" + buses[a] + ")",
          "rank " + std::to_string(group.rank()),
          "start one rank for each GPU; see LOCAL_RANK and CUDA_VISIBLE_DEVICES");
    }
  }
  for (const std::string& why : group.exchange(unreachable(buses, group.rank()))) {
    if (!why.empty()) return why;
  }
  return "";
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(Device& device, std::unique_ptr<HostGroup> group,
                                                const CommOptions& options) {
  if (options.transport != CommTransport::nccl) {
    const std::string why = why_no_peers(*group, options.transport);
    if (why.empty()) {
      log::info("communication: copies between the GPUs of this host, {} ranks", group->world_size());
      return make_peer_communicator(device, std::move(group), options);
    }
    if (options.transport == CommTransport::peer) {
      throw Error(ErrorKind::usage, "copies between GPUs do not serve this run: " + why,
                  "comm_transport: peer", "use comm_transport: auto");
    }
    log::debug("communication: no copies between GPUs, {}", why);
  }
  const NcclLibrary& nccl = nccl_library();
  if (nccl.version > 0)
    log::info("communication: NCCL {} ({}), {} ranks", nccl.version, nccl.path, group->world_size());
  return make_nccl_communicator(device, std::move(group), options);
}

}  // namespace deltatune::cuda
