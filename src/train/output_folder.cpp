// Preparing the output folder.
#include "train/output_folder.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "comm/exchange.h"
#include "io/save_folder.h"

namespace deltatune {
namespace {

// Checkpoints and metrics of an earlier run.
std::vector<fs::path> traces_of_a_run(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code problem;
  fs::directory_iterator entries(folder, problem);
  for (; !problem && entries != fs::directory_iterator(); entries.increment(problem)) {
    const std::string name = entries->path().filename().string();
    if (name == "metrics.jsonl" || is_checkpoint_name(name)) out.push_back(entries->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// A weights file that a run would replace; empty when there is none.
fs::path weights_in(const fs::path& folder) {
  std::error_code problem;
  fs::directory_iterator entries(folder, problem);
  for (; !problem && entries != fs::directory_iterator(); entries.increment(problem)) {
    if (entries->path().extension() == ".safetensors") return entries->path();
  }
  return {};
}

bool lies_in(const std::string& path, const fs::path& folder) {
  std::error_code problem;
  fs::path inner = fs::canonical(path, problem);
  const fs::path outer = problem ? fs::path() : fs::canonical(folder, problem);
  if (problem || path.empty()) return false;
  for (; inner.has_relative_path(); inner = inner.parent_path()) {
    if (inner == outer) return true;
  }
  return false;
}

void protect_inputs(const Config& config, const std::vector<fs::path>& doomed) {
  for (const std::string& input : {config.model_name_or_path, config.tokenizer_name_or_path}) {
    std::error_code code;
    if (!input.empty() && fs::equivalent(config.output_dir, input, code)) {
      throw Error(ErrorKind::usage, "output_dir is the folder of the input model", config.output_dir,
                  "give another output_dir: the input checkpoint is never written to");
    }
    for (const fs::path& trace : doomed) {
      if (!lies_in(input, trace)) continue;
      throw Error(ErrorKind::usage, "overwrite_output_dir would delete the input " + input, trace.string(),
                  "give another output_dir, or move that checkpoint out of the folder first");
    }
  }
}

void create_folder(const fs::path& folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (!code && !fs::is_directory(folder, code)) code = std::make_error_code(std::errc::not_a_directory);
  if (code) {
    throw Error(ErrorKind::resource, "cannot create output_dir: " + code.message(), folder.string(),
                "check the path and its permissions");
  }
  write_file_atomic(folder / ".deltatune-write-test", "");
  fs::remove(folder / ".deltatune-write-test", code);
}

}  // namespace

void prepare_output_folder(const Config& config, bool resuming) {
  if (config.output_dir.empty()) {
    throw Error(ErrorKind::usage, "no output folder is named", "output_dir", "give output_dir: out/my-run");
  }
  const fs::path folder = config.output_dir;
  // A profile lies beside whatever is there, and touches none of it.
  if (config.profile_only) {
    protect_inputs(config, {});
    return create_folder(folder);
  }
  const std::vector<fs::path> traces = resuming ? std::vector<fs::path>{} : traces_of_a_run(folder);
  protect_inputs(config, config.overwrite_output_dir ? traces : std::vector<fs::path>{});
  // resume_from_checkpoint: true without a complete checkpoint yet starts over in its own folder.
  const bool may_restart = !config.resume_from_checkpoint.empty() && config.resume_from_checkpoint != "false";
  if (!traces.empty() && !config.overwrite_output_dir && !may_restart) {
    throw Error(ErrorKind::usage, "output_dir already holds a run", traces.front().string(),
                "continue it with --resume_from_checkpoint true, replace it with --overwrite_output_dir, or "
                "give another output_dir");
  }
  const fs::path weights = weights_in(folder);
  if (!weights.empty() && !config.overwrite_output_dir && (!resuming || traces_of_a_run(folder).empty())) {
    throw Error(ErrorKind::usage,
                may_restart ? "output_dir already holds a model, and no checkpoint to go on from"
                            : "output_dir already holds a model",
                weights.string(),
                "give another output_dir, or replace the model with --overwrite_output_dir");
  }
  create_folder(folder);
}

void check_shared_folder(Communicator& comm, const fs::path& folder) {
  if (comm.world_size() == 1) return;
  const bool first = comm.rank() == 0;
  // A name that no earlier run has left behind.
  const std::string name = from_rank_0(comm, first ? ".deltatune-ranks-" + timestamp_utc() : "");
  together(comm, "prepare output_dir", [&] {
    if (first) write_file_atomic(folder / name, "");
  });
  const Stopwatch waited;
  std::error_code ignored;
  while (!fs::exists(folder / name, ignored) && waited.seconds() < 5)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const bool seen = fs::exists(folder / name, ignored);
  const bool all = min_over_ranks(comm, seen ? 1 : 0) == 1;
  if (first) fs::remove(folder / name, ignored);
  if (all) return;
  const std::string fix = "give an output_dir on a file system that all machines share, as an absolute path";
  if (!seen) {
    throw Error(ErrorKind::resource, format("rank {} does not see what rank 0 writes", comm.rank()),
                "output_dir " + folder.string(), fix);
  }
  throw Error(ErrorKind::distributed, "not all ranks see what rank 0 writes", "output_dir " + folder.string(),
              fix);
}

void remove_previous_run(const fs::path& output_dir) {
  std::vector<fs::path> doomed = traces_of_a_run(output_dir);
  for (const char* name : {"profile.json", "trace", "runs", "mlruns", "metrics.prom"})
    doomed.push_back(output_dir / name);  // may be missing
  std::error_code problem;
  fs::directory_iterator entries(output_dir, problem);
  for (; !problem && entries != fs::directory_iterator(); entries.increment(problem)) {
    if (entries->path().filename().string().starts_with("profile-rank")) doomed.push_back(entries->path());
  }
  for (const fs::path& trace : doomed) {
    std::error_code code;
    fs::remove_all(trace, code);
    if (code) {
      throw Error(ErrorKind::resource, "cannot remove the previous run: " + code.message(), trace.string(),
                  "check the folder's permissions, or give another output_dir");
    }
  }
}

int64_t parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  double factor = 0;
  static constexpr std::string_view letters = "KMGT";
  if (unit.empty() || unit == "B") factor = 1;
  if (unit.size() >= 2 && unit.back() == 'B') {
    const size_t power = letters.find(unit[0]);
    const bool binary = unit.size() == 3 && unit[1] == 'i';
    if (power != std::string_view::npos && (unit.size() == 2 || binary)) {
      factor = 1;
      for (size_t i = 0; i <= power; ++i) factor *= binary ? 1024 : 1000;
    }
  }
  if (problem != std::errc() || factor == 0 || !(number * factor >= 1) || number * factor > 9e18) {
    throw Error(ErrorKind::usage, format("\"{}\" is not a size", text), "max_shard_size",
                "write it as 5GB or 500MB");
  }
  return static_cast<int64_t>(number * factor);
}

}  // namespace deltatune
