// Facts from /proc, /sys and /etc on Linux.
#include "observe/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace deltatune {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The rest of the first line of `path` that starts with `key`, after separators.
std::string value_of(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key)) continue;
    const size_t start = line.find_first_not_of(" \t:=\"", key.size());
    if (start == std::string::npos) return "";
    return line.substr(start, line.find_last_not_of(" \t\"") + 1 - start);
  }
  return "";
}

int64_t leading_integer(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::vector<std::string> useful_flags() {
  constexpr std::array wanted = {"avx",      "avx2",     "fma",         "f16c",        "avx512f",
                                 "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni", "amx_bf16",
                                 "asimd",    "bf16",     "sve"};
  std::string flags = value_of("/proc/cpuinfo", "flags");
  if (flags.empty()) flags = value_of("/proc/cpuinfo", "Features");
  std::istringstream words(flags);
  std::vector<std::string> found;
  for (std::string word; words >> word;) {
    if (std::find(wanted.begin(), wanted.end(), word) != wanted.end()) found.push_back(word);
  }
  return found;
}

void read_gpus(Machine& machine) {
  const std::filesystem::path folder = "/proc/driver/nvidia/gpus";
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    machine.gpus.push_back(value_of((entry.path() / "information").string(), "Model"));
  }
  if (!machine.gpus.empty()) return;
  machine.gpus_note = std::filesystem::exists("/proc/driver/nvidia/version", code)
                          ? "the NVIDIA driver is loaded but shows no device"
                          : "no NVIDIA driver is loaded on this machine";
}

void read_memory(Machine& machine) {
  machine.memory_bytes = leading_integer(value_of("/proc/meminfo", "MemTotal")) * 1024;
  machine.memory_available_bytes = leading_integer(value_of("/proc/meminfo", "MemAvailable")) * 1024;
  const int64_t limit = leading_integer(first_line("/sys/fs/cgroup/memory.max"));
  if (limit > 0 && limit < machine.memory_bytes) machine.memory_bytes = limit;
  const std::string quota = first_line("/sys/fs/cgroup/cpu.max");  // "200000 100000" or "max 100000"
  const size_t space = quota.find(' ');
  if (space != std::string::npos && quota[0] != 'm') {
    const int64_t period = leading_integer(quota.substr(space + 1));
    if (period > 0)
      machine.cpu_quota = static_cast<double>(leading_integer(quota)) / static_cast<double>(period);
  }
}

bool matters(std::string_view name) {
  constexpr std::array exact = {"RANK",
                                "WORLD_SIZE",
                                "LOCAL_RANK",
                                "LOCAL_WORLD_SIZE",
                                "MASTER_ADDR",
                                "MASTER_PORT",
                                "TORCHELASTIC_USE_AGENT_STORE",
                                "SLURM_PROCID",
                                "SLURM_NTASKS",
                                "SLURM_LOCALID",
                                "SLURM_STEP_NODELIST",
                                "SLURM_JOB_ID",
                                "OMPI_COMM_WORLD_RANK",
                                "OMPI_COMM_WORLD_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK",
                                "PMI_RANK",
                                "PMI_SIZE",
                                "CUDA_VISIBLE_DEVICES",
                                "HF_HOME",
                                "HF_HUB_CACHE",
                                "OPENBLAS_NUM_THREADS",
                                "OMP_NUM_THREADS",
                                "NO_COLOR",
                                "CLICOLOR_FORCE",
                                "DELTATUNE_LOG",
                                "DELTATUNE_NUM_THREADS",
                                "DELTATUNE_CUDA_LIB_PATH",
                                "DELTATUNE_CACHE"};
  return std::find(exact.begin(), exact.end(), name) != exact.end() || name.starts_with("NCCL_");
}

}  // namespace

Machine this_machine() {
  Machine machine;
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) == 0) machine.host = host;
  utsname names{};
  if (::uname(&names) == 0)
    machine.system = std::string(names.sysname) + " " + names.release + " " + names.machine;
  machine.distribution = value_of("/etc/os-release", "PRETTY_NAME");
  machine.cpu = value_of("/proc/cpuinfo", "model name");
  machine.cpu_flags = useful_flags();
  cpu_set_t cores;
  CPU_ZERO(&cores);
  machine.cores = ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
  read_memory(machine);
  read_gpus(machine);
  return machine;
}

json::Value machine_json() {
  const Machine machine = this_machine();
  json::Array flags(machine.cpu_flags.begin(), machine.cpu_flags.end());
  json::Array gpus(machine.gpus.begin(), machine.gpus.end());
  json::Value value;
  value.set("host", machine.host);
  value.set("system", machine.system);
  value.set("distribution", machine.distribution);
  value.set("cpu", machine.cpu);
  value.set("cpu_flags", std::move(flags));
  value.set("cores", machine.cores);
  value.set("memory_bytes", machine.memory_bytes);
  value.set("gpus", std::move(gpus));
  return value;
}

std::vector<std::pair<std::string, std::string>> launch_environment() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || !matters(text.substr(0, equals))) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace deltatune
