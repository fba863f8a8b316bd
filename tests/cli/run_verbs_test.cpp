// `report` and `advise` on output folders: sound ones, half written ones, and none.
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/run_binary.h"
#include "observe/run_files.h"

namespace deltatune {
namespace {

namespace fs = std::filesystem;

TEST(ReportVerb, WritesOneRunOrTwo) {
  ScratchFolder folder;
  write_run(folder / "first");
  write_run(folder / "second", {.speed = 2});
  ProgramResult result = run_deltatune(format("report '{}'", (folder / "first").string()));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, (folder / "first" / "report.html").string() + "\n");
  EXPECT_TRUE(fs::exists(folder / "first" / "report.html"));
  result =
      run_deltatune(format("report '{}' '{}/'", (folder / "first").string(), (folder / "second").string()));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(fs::exists(folder / "first" / "report-with-second.html")) << result.out;
  EXPECT_EQ(run_deltatune(format("report '{}' a b", (folder / "first").string())).code, 2);
}

TEST(ReportVerb, SaysWhatIsNoRun) {
  ScratchFolder folder;
  const ProgramResult result = run_deltatune(format("report '{}'", (folder / "").string()));
  EXPECT_EQ(result.code, 3);
  EXPECT_NE(result.err.find("output_dir"), std::string::npos) << result.err;
  EXPECT_EQ(run_deltatune("advise /nowhere/at/all").code, 3);
  EXPECT_EQ(run_deltatune("advise").code, 2);
}

TEST(AdviseVerb, PrintsFindingsAsTextAndAsJson) {
  ScratchFolder folder;
  write_run(folder / "run");
  const std::string path = (folder / "run").string();
  const ProgramResult text = run_deltatune(format("advise '{}'", path));
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("\n  seen:  "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("looked at: the last 199 logged steps"), std::string::npos) << text.out;
  const ProgramResult machine = run_deltatune(format("advise '{}' --json", path));
  const json::Value out = json::parse(machine.out, "advise");
  bool slow = false;
  for (const json::Value& finding : out.at("findings").as_array())
    slow = slow || finding.at("rule").as_string() == "slow_kernel";  // the profile's gated_delta_forward
  EXPECT_TRUE(slow) << machine.out;
  EXPECT_FALSE(fs::exists(fs::path(path) / "report.html")) << "advise writes nothing";
}

TEST(AdviseVerb, ARunningJobsFolderIsEnough) {
  ScratchFolder folder;
  write_text(folder / "metrics.jsonl", step_text(1, 10) + "\n" + step_text(2, 10).substr(0, 40));
  const ProgramResult result = run_deltatune(format("advise '{}'", (folder / "").string()));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("the last logged step"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("missing:   no profile"), std::string::npos) << result.out;
}

TEST(AdviseVerb, HostileFilesAreSurvived) {
  ScratchFolder folder;
  std::string text =
      "{\"event\": \"step\", \"step\": 1e300, \"time_s\": NaN}\n\xff\n" + std::string(2 << 20, '{') + "\n";
  text +=
      R"({"event": "step", "step": 1, "time_s": 1e-300, "tokens": -1e308, "fill": 1e308, "data_wait_s": -5, "loss": 1e308})"
      "\n";
  text +=
      R"({"event": "step", "step": 2, "time_s": 1e308, "tokens": 1e308, "fill": -1, "host_bound_share": 1e308, "mfu": -1})"
      "\n";
  text += R"({"event": "nan", "step": "x", "layer": {"a": 1}})"
          "\n";
  write_text(folder / "metrics.jsonl", text);
  write_text(
      folder / "run.json",
      R"({"world_size": 1e300, "recompute": 5, "plan": 7, "data": {"rows": -1, "truncated": 1e308, "lengths": {"p99": 1e300}}, "kernels": {"a": 1, "b": "plain, slow ("}, "machine": {"gpus": [3]}})");
  write_text(
      folder / "profile.json",
      R"({"rank": 1e99, "step_ms": 1e-300, "busy_ms": -4, "host_bound_ms": 1e308, "ops": [{"op": "matmul", "device_ms": 1e308, "roofline": 1e-300, "slow": true}, 7]})");
  write_text(folder / "config.resolved.yaml",
             "max_tokens: 99999999999999999999\nlearning_rate: x\nmax_length: -3\n");
  for (const char* verb : {"advise", "report"}) {
    const ProgramResult result = run_deltatune(format("{} '{}'", verb, (folder / "").string()));
    EXPECT_EQ(result.code, 0) << verb << ": " << result.err;
  }
  const ProgramResult machine = run_deltatune(format("advise '{}' --json", (folder / "").string()));
  EXPECT_NO_THROW(json::parse(machine.out, "advise")) << machine.out;
}

}  // namespace
}  // namespace deltatune
