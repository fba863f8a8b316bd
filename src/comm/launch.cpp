// One table of names, one way to read them.
#include "comm/launch.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* only_if;  // nullptr: always
};
// A batch script of Slurm has SLURM_PROCID too: only srun's steps have a number of tasks of their own.
constexpr std::array<Names, 4> table = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
     "SLURM_STEP_NUM_TASKS"},
}};

[[noreturn]] void refuse(const std::string& what, const std::string& where) {
  throw Error(ErrorKind::usage, what, where,
              "let the launcher set these variables, or unset them to train on one rank");
}

// A port that ranks of one job agree on without talking: below the range from which systems give ports to
// outgoing connections.
int port_of_job(std::string_view job) {
  uint32_t sum = 2166136261u;  // FNV-1a
  for (const char c : job) sum = (sum ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(sum % 10000);
}

using Text = std::function<const char*(const char*)>;

void find_meeting_place(Launch& launch, const Text& text_of) {
  const auto or_empty = [&](const char* name) {
    const char* text = text_of(name);
    return std::string(text != nullptr ? text : "");
  };
  launch.master_addr = or_empty("MASTER_ADDR");
  const bool one_machine = launch.local_world_size == launch.world_size;
  if (launch.launcher == "srun" && launch.master_addr.empty()) {
    std::string hosts = or_empty("SLURM_STEP_NODELIST");
    if (hosts.empty()) hosts = or_empty("SLURM_JOB_NODELIST");
    launch.master_addr = first_host(hosts);
  } else if (launch.launcher != "torchrun" && one_machine && launch.master_addr.empty()) {
    launch.master_addr = "127.0.0.1";
  }
  if (const std::string port = or_empty("MASTER_PORT"); !port.empty()) {
    const char* end = port.data() + port.size();
    const auto [rest, problem] = std::from_chars(port.data(), end, launch.master_port);
    if (problem != std::errc() || rest != end || launch.master_port < 1 || launch.master_port > 65534)
      refuse(format("\"{}\" is no port", port), "MASTER_PORT");
    if (launch.launcher == "torchrun" && or_empty("TORCHELASTIC_USE_AGENT_STORE") == "True")
      ++launch.master_port;
  } else if (launch.launcher == "srun") {
    launch.master_port = port_of_job(or_empty("SLURM_JOB_ID") + "." + or_empty("SLURM_STEP_ID"));
  } else if (const std::string job = or_empty("PMIX_NAMESPACE");
             launch.launcher == "mpirun" && !job.empty()) {
    launch.master_port = port_of_job(job);
  }
}

}  // namespace

std::string first_host(std::string_view nodelist) {
  std::string out;
  for (size_t i = 0; i < nodelist.size() && nodelist[i] != ','; ++i) {
    if (nodelist[i] != '[') {
      out += nodelist[i];
      continue;
    }
    // A range or a list of numbers, of which the first has the zeros of all.
    const size_t end = nodelist.find(']', i);
    const size_t number = nodelist.find_first_of(",-]", i);
    if (end == std::string_view::npos || number == i + 1) return {};
    out += nodelist.substr(i + 1, number - i - 1);
    i = end;
  }
  for (const char c : out) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '.' || c == '_';
    if (!fits) return {};
  }
  return out;
}

Launch launch_of(const std::function<const char*(const char*)>& variable) {
  const auto text_of = [&](const char* name) -> const char* {
    const char* text = variable(name);
    return text != nullptr && *text != '\0' ? text : nullptr;
  };
  const auto number = [&](const char* name) -> std::optional<int> {
    const char* text = text_of(name);
    if (text == nullptr) return std::nullopt;
    int value = 0;
    const char* end = text + std::strlen(text);
    const auto [rest, problem] = std::from_chars(text, end, value);
    // Slurm writes "4(x2)": 4 tasks on each of 2 nodes; a list of different numbers is not looked at.
    const bool whole = rest == end || (*rest == '(' && std::strchr(rest, ',') == nullptr);
    if (problem != std::errc() || value < 0) refuse(format("\"{}\" is no number of ranks", text), name);
    if (!whole && std::strchr(text, ',') == nullptr)
      refuse(format("\"{}\" is no number of ranks", text), name);
    return whole ? std::optional<int>(value) : std::nullopt;
  };
  for (const Names& names : table) {
    if (names.only_if != nullptr && text_of(names.only_if) == nullptr) continue;
    const bool has_rank = text_of(names.rank) != nullptr, has_world = text_of(names.world_size) != nullptr;
    if (!has_rank && !has_world) continue;
    if (has_rank != has_world) {
      refuse(format("{} is set, {} is not", has_rank ? names.rank : names.world_size,
                    has_rank ? names.world_size : names.rank),
             "environment");
    }
    Launch out;
    out.launcher = names.launcher;
    out.rank = number(names.rank).value_or(0);
    out.world_size = number(names.world_size).value_or(0);
    if (out.world_size < 1 || out.rank >= out.world_size) {
      refuse(format("rank {} of {} ranks does not exist", out.rank, out.world_size),
             format("{}, {}", names.rank, names.world_size));
    }
    out.local_rank = number(names.local_rank).value_or(out.rank);
    out.local_world_size = number(names.local_world_size).value_or(out.world_size);
    if (out.local_rank >= out.local_world_size || out.local_world_size > out.world_size) {
      refuse(format("local rank {} of {} is impossible with {} ranks in all", out.local_rank,
                    out.local_world_size, out.world_size),
             format("{}, {}", names.local_rank, names.local_world_size));
    }
    find_meeting_place(out, text_of);
    return out;
  }
  return {};
}

Launch launch_of_environment() {
  return launch_of([](const char* name) { return std::getenv(name); });
}

}  // namespace deltatune
