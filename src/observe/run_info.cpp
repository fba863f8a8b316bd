// Writing run.json.
#include "observe/run_info.h"

#include <unistd.h>

#include "base/clock.h"
#include "build_info.h"
#include "observe/machine.h"

namespace deltatune {

RunInfo::RunInfo(fs::path path, std::string_view command_line) : path_(std::move(path)) {
  value_.set("command_line", command_line);
  value_.set("started", timestamp_utc());
  value_.set("process", int64_t{::getpid()});
  value_.set("version", build_info::version);
  value_.set("commit", build_info::commit);
  value_.set("compiler", build_info::compiler);
  value_.set("machine", machine_json());
  json::Value environment{json::Object{}};
  for (const auto& [name, text] : launch_environment()) environment.set(name, text);
  value_.set("environment", std::move(environment));
  json::Value exit;
  exit.set("state", "running");
  value_.set("exit", std::move(exit));
}

void RunInfo::set(std::string_view key, json::Value value) {
  value_.set(key, std::move(value));
  write();
}

void RunInfo::write() const {
  write_file_atomic(path_, json::dump(value_, 2) + "\n");
}

void RunInfo::finish(int code, std::string_view message) {
  json::Value exit;
  exit.set("state", code == 0 ? "done" : code == 130 || code == 143 ? "stopped" : "failed");
  exit.set("code", code);
  exit.set("message", message);
  exit.set("ended", timestamp_utc());
  set("exit", std::move(exit));
}

}  // namespace deltatune
