// Ranks of a test that each have a GPU: processes, forked before CUDA is touched in this one.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/cuda_communicator.h"
#include "ops/cuda_plugin.h"

namespace deltatune::gpu_ranks {

/// GPUs that ranks of these tests are spread over; a process of its own looks. DELTATUNE_TEST_GPU_RANKS names
/// another number of ranks: those of one GPU then take turns, which is slow and shows the same.
inline int rank_count(std::string& why) {
  static const int gpus = [] {
    const pid_t child = ::fork();
    if (child == 0) {
      std::string reason;
      const CudaPlugin* plugin = cuda_plugin(reason);
      ::_exit(plugin ? std::min(plugin->device_count(reason), 100) : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  const char* wanted = std::getenv("DELTATUNE_TEST_GPU_RANKS");
  const int ranks = wanted && gpus > 0 ? std::atoi(wanted) : gpus;
  if (ranks < 2) why = "needs two GPUs, " + std::to_string(gpus) + " are there";
  return ranks;
}
inline int gpu_of(int rank) {
  std::string why;
  return rank % cuda_plugin(why)->device_count(why);
}

/// A port of this machine that nobody listens on.
inline int free_port() {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(s, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return 0;
  ::getsockname(s, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(s);
  return ntohs(address.sin_port);
}

/// What a rank has: its device and the communicator.
struct Rank {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm;
};

/// The device and the communicator of a rank of this test.
inline Rank join(int rank, int ranks, int port, const CommOptions& options) {
  Launch launch;
  launch.rank = launch.local_rank = rank;
  launch.world_size = launch.local_world_size = ranks;
  launch.master_addr = "127.0.0.1";
  launch.master_port = port;
  HostGroupOptions meeting;
  meeting.timeout = std::max<std::chrono::milliseconds>(options.timeout, std::chrono::seconds(30));
  meeting.version = "test";
  auto group = join_host_group(launch, meeting);
  Rank out;
  std::string why;
  out.device = make_cuda_device(gpu_of(rank));
  out.comm = cuda_plugin(why)->make_communicator(*out.device, std::move(group), options);
  return out;
}

/// Exit codes of the ranks; 0: the body ended and no expectation failed, 100 + kind: an Error that the body
/// let through, which is printed, negative: a signal.
inline std::vector<int> on_gpus(int ranks, const CommOptions& options,
                                const std::function<void(Rank&)>& body) {
  const int port = free_port();
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int code = 0;
    const bool failed_before = testing::Test::HasFailure();
    try {
      Rank self = join(rank, ranks, port, options);
      body(self);
    } catch (const Error& error) {
      std::cout << "[rank " << rank << "] " << error.text() << "\n";
      code = 100 + static_cast<int>(error.kind());
    } catch (const std::exception& other) {
      std::cout << "[rank " << rank << "] " << other.what() << "\n";
      code = 99;
    }
    if (code == 0 && !failed_before && testing::Test::HasFailure()) code = 98;
    std::cout << std::flush;
    ::_exit(code);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return codes;
}

class GpuRanks : public testing::TestWithParam<CommTransport> {
 protected:
  void SetUp() override {
    std::string why;
    ranks = rank_count(why);
    if (ranks < 2) GTEST_SKIP() << why;
  }
  CommOptions options(std::chrono::milliseconds timeout = std::chrono::seconds(60)) const {
    return {timeout, GetParam()};
  }
  /// All ranks end well.
  void run(const std::function<void(Rank&)>& body) {
    EXPECT_EQ(on_gpus(ranks, options(), body), std::vector<int>(static_cast<size_t>(ranks), 0));
  }
  int ranks = 0;
};

inline std::string name_of_transport(const testing::TestParamInfo<CommTransport>& info) {
  return info.param == CommTransport::peer ? "peer" : "nccl";
}

}  // namespace deltatune::gpu_ranks
