// What this machine is: for run.json, the report and `doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace deltatune {

struct Machine {
  std::string host;
  std::string system;                  ///< "Linux 6.1.0"
  std::string distribution;            ///< PRETTY_NAME of /etc/os-release; empty when there is none
  std::string cpu;                     ///< model name; empty when unknown
  std::vector<std::string> cpu_flags;  ///< of those the kernels can use: avx, avx2, fma, f16c, avx512f, ...
  int cores = 0;                       ///< usable by this process (affinity)
  double cpu_quota = 0;                ///< cores that a cgroup allows; 0: no limit
  int64_t memory_bytes = 0;            ///< installed, or what a cgroup allows when that is less
  int64_t memory_available_bytes = 0;
  std::vector<std::string> gpus;  ///< names of NVIDIA devices the driver shows
  std::string gpus_note;          ///< why there are none
};

/// this_machine() as JSON: host, system, distribution, cpu, cpu_flags, cores, memory_bytes, gpus.
json::Value machine_json();

/// Reads /proc, /etc and /sys; never fails, unknown fields stay empty.
Machine this_machine();

/// Environment variables that matter to a run (launchers', CUDA_VISIBLE_DEVICES, NCCL_*, DELTATUNE_*, ...)
/// and are set, sorted by name. A fixed list: nothing else of the environment is looked at.
std::vector<std::pair<std::string, std::string>> launch_environment();

}  // namespace deltatune
