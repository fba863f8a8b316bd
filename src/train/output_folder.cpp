// Preparing the output folder.
#include "train/output_folder.h"

#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "io/save_folder.h"

namespace deltatune {
namespace {

std::vector<fs::path> traces_of_a_run(const fs::path& folder) {
  std::vector<fs::path> out;
  if (!fs::exists(folder)) return out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "metrics.jsonl" || is_checkpoint_name(name)) out.push_back(entry.path());
  }
  return out;
}

}  // namespace

void prepare_output_folder(const Config& config, bool resuming) {
  if (config.output_dir.empty()) {
    throw Error(ErrorKind::usage, "no output folder is named", "output_dir", "give output_dir: out/my-run");
  }
  const fs::path folder = config.output_dir;
  std::error_code code;
  if (!config.model_name_or_path.empty() && fs::equivalent(folder, config.model_name_or_path, code)) {
    throw Error(ErrorKind::usage, "output_dir is the folder of the input model", config.output_dir,
                "give another output_dir: the input checkpoint is never written to");
  }
  const std::vector<fs::path> traces = resuming ? std::vector<fs::path>{} : traces_of_a_run(folder);
  // resume_from_checkpoint: true without a complete checkpoint yet starts over in its own folder.
  const bool may_restart = !config.resume_from_checkpoint.empty() && config.resume_from_checkpoint != "false";
  if (!traces.empty() && !config.overwrite_output_dir && !may_restart) {
    throw Error(ErrorKind::usage, "output_dir already holds a run", traces.front().string(),
                "continue it with --resume_from_checkpoint true, replace it with --overwrite_output_dir, or "
                "give another "
                "output_dir");
  }
  fs::create_directories(folder, code);
  if (code) {
    throw Error(ErrorKind::resource, "cannot create output_dir: " + code.message(), config.output_dir,
                "check the path and its permissions");
  }
  if (config.overwrite_output_dir && !config.dry_run) {
    for (const fs::path& trace : traces) fs::remove_all(trace, code);
  }
  write_file_atomic(folder / ".deltatune-write-test", "");
  fs::remove(folder / ".deltatune-write-test", code);
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
