// One table of names, one way to read them.
#include "comm/launch.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

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

}  // namespace

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
    return out;
  }
  return {};
}

Launch launch_of_environment() {
  return launch_of([](const char* name) { return std::getenv(name); });
}

}  // namespace deltatune
