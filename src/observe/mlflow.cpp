// Folders of small text files.
#include "observe/mlflow.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/yaml.h"
#include "observe/append_file.h"

namespace deltatune {
namespace {

constexpr size_t longest_param = 6000;  // MLflow's limit

// A scalar of YAML whatever is in it: JSON strings are.
std::string yaml_text(std::string_view text) {
  return json::quote(text);
}

int64_t milliseconds(double time) {
  return static_cast<int64_t>(time * 1e3);
}

std::string uri(const fs::path& path) {
  return "file://" + fs::absolute(path).lexically_normal().string();
}

void write_experiment(const fs::path& folder, const char* id, const char* name, double time) {
  std::error_code ignored;
  if (fs::exists(folder / "meta.yaml", ignored)) return;
  fs::create_directories(folder, ignored);
  write_file_atomic(
      folder / "meta.yaml",
      format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\nlast_update_time: {}\n"
             "lifecycle_stage: active\nname: {}\n",
             yaml_text(uri(folder)), milliseconds(time), id, milliseconds(time), name));
}

// Of the run in `folder`; 0 where there is none.
int64_t start_of(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "meta.yaml", ignored)) return 0;
  try {
    const json::Value meta = yaml::to_json(yaml::parse(read_file(folder / "meta.yaml"), "meta.yaml"));
    const json::Value* start = meta.find("start_time");
    return start != nullptr && start->is_integer() ? start->as_integer() : 0;
  } catch (const Error&) {
    return 0;
  }
}

// The latest run of the experiment; empty: none.
fs::path latest_run(const fs::path& experiment, int64_t& start) {
  fs::path latest;
  std::error_code problem;
  fs::directory_iterator entries(experiment, problem);
  for (; !problem && entries != fs::directory_iterator(); entries.increment(problem)) {
    const int64_t began = start_of(entries->path());
    if (began <= start) continue;
    start = began;
    latest = entries->path();
  }
  return latest;
}

class Mlflow final : public RunLogger {
 public:
  Mlflow(const LoggerOptions& options, double time) : name_(options.run_name) {
    const fs::path root = options.output_dir / "mlruns";
    write_experiment(root / "0", "0", "Default", time);
    write_experiment(root / "1", "1", "deltatune", time);
    if (options.continues) folder_ = latest_run(root / "1", start_);
    if (folder_.empty()) {
      start_ = milliseconds(time);
      folder_ = root / "1" / hash_hex(format("{} {}", fs::absolute(options.output_dir).string(), start_));
    } else {
      truncate(options.steps);
    }
    for (const char* part : {"artifacts", "metrics", "params", "tags"}) {
      std::error_code ignored;
      fs::create_directories(folder_ / part, ignored);
    }
    write_meta(1, 0);
    write_file_atomic(folder_ / "tags" / "mlflow.runName", name_);
    for (const auto& [key, value] : options.params)
      write_file_atomic(folder_ / "params" / key, value.substr(0, longest_param));
  }

  void write(int64_t step, double time, const std::vector<Scalar>& scalars) override {
    for (const Scalar& scalar : scalars) {
      std::unique_ptr<AppendFile>& file = files_[scalar.name];
      if (!file) file = std::make_unique<AppendFile>(folder_ / "metrics" / scalar.name);
      const std::string value = std::isnan(scalar.value) ? "nan" : format("{}", scalar.value);
      file->append(format("{} {} {}\n", milliseconds(time), value, step));
    }
  }
  void end(RunEnd how, double time) override {
    write_meta(how == RunEnd::done ? 3 : how == RunEnd::failed ? 4 : 5, milliseconds(time));
  }

 private:
  void truncate(int64_t last_step) const {
    std::error_code problem;
    fs::recursive_directory_iterator entries(folder_ / "metrics", problem);
    for (; !problem && entries != fs::recursive_directory_iterator(); entries.increment(problem)) {
      if (!entries->is_regular_file(problem)) continue;
      const std::string text = read_file(entries->path());
      const std::string kept = metric_lines_up_to(text, last_step);
      if (kept != text) write_file_atomic(entries->path(), kept);
    }
  }
  void write_meta(int status, int64_t ended) const {
    const std::string id = folder_.filename().string();
    write_file_atomic(
        folder_ / "meta.yaml",
        format("artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '1'\n"
               "lifecycle_stage: active\nrun_id: '{}'\nrun_name: {}\nrun_uuid: '{}'\nsource_name: ''\n"
               "source_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {}\ntags: []\nuser_id: ''\n",
               yaml_text(uri(folder_ / "artifacts")), ended > 0 ? format("{}", ended) : "null", id,
               yaml_text(name_), id, start_, status));
  }

  std::string name_;
  fs::path folder_;
  int64_t start_ = 0;
  std::map<std::string, std::unique_ptr<AppendFile>> files_;
};

}  // namespace

std::string metric_lines_up_to(std::string_view text, int64_t last_step) {
  std::string kept;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end);
    const std::string_view word = line.substr(line.rfind(' ') + 1);
    int64_t step = 0;
    const auto [stop, problem] = std::from_chars(word.data(), word.data() + word.size(), step);
    if (problem == std::errc() && stop == word.data() + word.size() && step <= last_step)
      kept.append(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
  return kept;
}

std::unique_ptr<RunLogger> open_mlflow(const LoggerOptions& options, double time) {
  return std::make_unique<Mlflow>(options, time);
}

}  // namespace deltatune
