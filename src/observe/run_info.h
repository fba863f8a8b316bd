// run.json: what was run, where, on what, and how it ended.
//
// {"command_line", "started", "version", "commit", "compiler", "machine": {...}, "environment": {...},
// members set by the caller ("plan", "data", ...), "exit": {"state": "running" | "done" | "stopped" |
// "failed", "code", "message", "ended"}}. Invariants: rewritten atomically, so a reader never sees half a
// file; a run that was killed leaves "running". Not done here: environment variables beyond those of
// launch_environment().
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace deltatune {

class RunInfo {
 public:
  /// Collects the facts of this process; writes nothing yet.
  RunInfo(fs::path path, std::string_view command_line);

  /// Sets a member ("plan", "data_fingerprint", ...) and rewrites the file. Throws Error{resource}.
  void set(std::string_view key, json::Value value);
  /// Rewrites the file. Throws Error{resource}.
  void write() const;
  /// The end: state "done" (code 0), "stopped" (130, 143: by a signal, resumable) or "failed".
  void finish(int code, std::string_view message = {});
  const json::Value& value() const { return value_; }

 private:
  fs::path path_;
  json::Value value_;
};

}  // namespace deltatune
