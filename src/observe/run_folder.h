// RunFolder: the files of an output folder that say what a run did, read once or again and again.
//
// run.json, metrics.jsonl, config.resolved.yaml, profile.json with those of other ranks, and a
// profile-before.json that somebody kept from an earlier profile. Each of them may be missing, half written
// or damaged: that is a note (which file, what is wrong, what to do), not an error. Not done here: judging
// what is in them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "observe/metrics_tail.h"
#include "observe/run_record.h"

namespace deltatune {

/// A key of the configuration.
struct Setting {
  std::string key;
  std::string value;   ///< as YAML shows it; lists and maps as JSON
  std::string origin;  ///< "default", "file cfg.yaml:3", "flag --lr"; empty: unknown
};

class RunFolder {
 public:
  /// Reads nothing yet.
  explicit RunFolder(fs::path folder);

  /// Reads what is new. Files above 16 MiB are noted and left out, metrics.jsonl may have any size.
  /// `progress`: see MetricsTail::read.
  void refresh(const std::function<void(int64_t, int64_t)>& progress = {});

  const fs::path& folder() const { return folder_; }
  /// run_name of run.json, else the folder's name.
  std::string title() const;
  /// "running", "done", "stopped" or "failed".
  std::string state() const;
  const RunRecord& record() const { return record_; }
  const json::Value& run() const { return run_; }  ///< run.json, or null
  const std::vector<Setting>& settings() const { return settings_; }
  /// Value of a key of the configuration, or "".
  std::string setting(std::string_view key) const;
  const json::Value& profile() const { return profile_; }        ///< rank 0's, or null
  const json::Value& profile_before() const { return before_; }  ///< or null
  const std::vector<json::Value>& other_profiles() const {
    return others_;
  }  ///< profile-rankNNNN.json, of up to 63 ranks
  const std::vector<std::string>& notes() const { return notes_; }  ///< what could not be read

 private:
  bool is_there(const char* name);  ///< with a note where it is no regular file
  json::Value read_json(const char* name, const char* fix);
  void read_settings();

  fs::path folder_;
  MetricsTail tail_;
  RunRecord record_;
  json::Value run_, profile_, before_;
  std::vector<json::Value> others_;
  std::vector<Setting> settings_;
  std::vector<std::string> notes_;
};

/// Throws Error{data} unless `folder` is one that a run writes: it has a metrics.jsonl or a run.json.
void check_run_folder(const fs::path& folder);

}  // namespace deltatune
