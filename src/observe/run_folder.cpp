// Reading the files of an output folder.
#include "observe/run_folder.h"

#include <algorithm>
#include <system_error>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/yaml.h"

namespace deltatune {
namespace {

constexpr uintmax_t max_bytes = uintmax_t{16} << 20;
constexpr size_t max_settings = 400;
constexpr int max_ranks = 64;
constexpr const char* resume_fix = "the run writes it again when it is resumed";
constexpr const char* profile_fix = "write it again: deltatune profile with the configuration of the run";

// In one line; where in the file is part of it.
std::string problem_of(const Error& error) {
  const std::string where = error.where();
  return clean_text(std::string(error.what()) + (where.empty() ? "" : " (" + where + ")"), 300);
}

// "key: value   # file cfg.yaml:3": what stands behind the last " # " of the key's line.
std::map<std::string, std::string> origins_of(std::string_view text) {
  std::map<std::string, std::string> out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const size_t colon = line.find(": ");
    const size_t comment = line.rfind(" # ");
    if (colon != std::string_view::npos && comment != std::string_view::npos && comment > colon)
      out.emplace(line.substr(0, colon), clean_text(line.substr(comment + 3), 120));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return out;
}

}  // namespace

RunFolder::RunFolder(fs::path folder) : folder_(std::move(folder)), tail_(folder_ / "metrics.jsonl") {}

bool RunFolder::is_there(const char* name) {
  std::error_code code;
  const fs::file_status status = fs::status(folder_ / name, code);
  if (status.type() == fs::file_type::not_found) return false;
  if (status.type() == fs::file_type::regular) return true;
  notes_.push_back(
      format("{} cannot be read: {}; take it away", name, code ? code.message() : "it is no file"));
  return false;
}

json::Value RunFolder::read_json(const char* name, const char* fix) {
  const fs::path path = folder_ / name;
  if (!is_there(name)) return {};
  std::error_code code;
  const uintmax_t bytes = fs::file_size(path, code);
  if (code) return {};  // gone meanwhile
  if (bytes > max_bytes) {
    notes_.push_back(format("{} is too large to be read: {}; {}", name, format_bytes(bytes), fix));
    return {};
  }
  try {
    json::Value value = json::parse_file(path.string());
    if (value.is_object()) return value;
    notes_.push_back(format("{} holds no JSON object; {}", name, fix));
  } catch (const Error& error) {
    notes_.push_back(format("{} cannot be read: {}; {}", name, problem_of(error), fix));
  }
  return {};
}

void RunFolder::read_settings() {
  settings_.clear();
  const fs::path path = folder_ / "config.resolved.yaml";
  if (!is_there("config.resolved.yaml")) return;
  std::error_code code;
  const uintmax_t bytes = fs::file_size(path, code);
  if (code) return;
  try {
    if (bytes > max_bytes) throw Error(ErrorKind::data, "it is too large");
    const std::string text = read_file(path);
    const auto origins = origins_of(text);
    const yaml::Node root = yaml::parse(text, "config.resolved.yaml");
    for (const yaml::Member& member : root.map) {
      if (settings_.size() >= max_settings) break;
      const json::Value value = yaml::to_json(member.second);
      const std::string shown = member.second.kind == yaml::Kind::scalar ? member.second.text
                                : value.is_null()                        ? ""
                                                                         : json::dump(value);
      const auto origin = origins.find(member.first);
      settings_.push_back({clean_text(member.first, 80), clean_text(shown, 300),
                           origin == origins.end() ? "" : origin->second});
    }
  } catch (const Error& error) {
    notes_.push_back(format("config.resolved.yaml cannot be read: {}; {}", problem_of(error), resume_fix));
  }
}

void RunFolder::refresh(const std::function<void(int64_t, int64_t)>& progress) {
  notes_.clear();
  run_ = read_json("run.json", resume_fix);
  read_settings();
  profile_ = read_json("profile.json", profile_fix);
  const json::Value* ops = profile_.find("ops");
  if (!profile_.is_null() && (!ops || !ops->is_array() || !(number_of(profile_, "step_ms") > 0)))
    notes_.push_back(format("profile.json is no profile: it has no list ops or no step_ms; {}", profile_fix));
  before_ = read_json("profile-before.json", "take it away, or copy it again from the earlier run");
  others_.clear();
  for (int rank = 1; rank < max_ranks; ++rank) {
    const std::string name = format("profile-rank{:04d}.json", rank);
    std::error_code code;
    if (!fs::exists(folder_ / name, code)) break;
    if (json::Value other = read_json(name.c_str(), profile_fix); !other.is_null())
      others_.push_back(std::move(other));
  }
  try {
    tail_.read([&](const json::Value& event) { record_.add(event); }, [&] { record_ = RunRecord(); },
               progress);
  } catch (const Error& error) {
    notes_.push_back(format("metrics.jsonl cannot be read: {}; {}", problem_of(error), error.fix()));
  }
  if (tail_.skipped() > 0)
    notes_.push_back(
        format("left out of metrics.jsonl, for being no events: {}", counted(tail_.skipped(), "line")));
}

std::string RunFolder::title() const {
  std::string name = text_of(run_, "run_name", 200);
  if (!name.empty()) return name;
  std::error_code code;
  fs::path path = fs::absolute(folder_, code).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return clean_text(path.filename().string(), 200);
}

std::string RunFolder::state() const {
  const json::Value* exit = run_.find("exit");
  std::string state = exit == nullptr ? "" : text_of(*exit, "state", 20);
  return state == "done" || state == "stopped" || state == "failed" ? state : "running";
}

std::string RunFolder::setting(std::string_view key) const {
  const auto found = std::find_if(settings_.begin(), settings_.end(),
                                  [&](const Setting& setting) { return setting.key == key; });
  return found == settings_.end() ? "" : found->value;
}

void check_run_folder(const fs::path& folder) {
  std::error_code code;
  if (fs::exists(folder / "metrics.jsonl", code) || fs::exists(folder / "run.json", code)) return;
  if (fs::exists(folder, code) && !fs::is_directory(folder, code)) {
    throw Error(ErrorKind::data, format("{} is no folder", folder.string()), folder.string(),
                "give the output_dir of a run");
  }
  throw Error(ErrorKind::data, format("there is no metrics.jsonl in {}", folder.string()), folder.string(),
              "give the output_dir of a run");
}

}  // namespace deltatune
