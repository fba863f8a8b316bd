// run.json.
#include "observe/run_info.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/run_binary.h"

namespace deltatune {
namespace {

TEST(RunInfo, RecordsCommandMachineAndEnd) {
  ScratchFolder folder;
  RunInfo info(folder / "run.json", "deltatune train cfg.yaml --seed 3");
  info.write();
  json::Value file = json::parse(slurp(folder / "run.json"), "run.json");
  EXPECT_EQ(file.at("command_line").as_string(), "deltatune train cfg.yaml --seed 3");
  EXPECT_EQ(file.at("exit").at("state").as_string(), "running");
  EXPECT_GT(file.at("machine").at("memory_bytes").as_integer(), 0);
  EXPECT_GE(file.at("machine").at("cores").as_integer(), 1);
  info.finish(143, "SIGTERM");
  file = json::parse(slurp(folder / "run.json"), "run.json");
  EXPECT_EQ(file.at("exit").at("state").as_string(), "stopped");
  info.finish(6, "diverged");
  EXPECT_EQ(json::parse(slurp(folder / "run.json"), "run.json").at("exit").at("state").as_string(), "failed");
}

}  // namespace
}  // namespace deltatune
