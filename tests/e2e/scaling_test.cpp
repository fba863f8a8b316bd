// bench/scaling on ranks of the CPU: what a run of it writes down is that of the runs it made, a killed rank
// is recorded as it was seen, and a call that is interrupted keeps what it has.
#include "e2e/ranks.h"

namespace deltatune {
namespace {

constexpr int64_t tokens = 64;

struct Scaling : Ranks {
  void SetUp() override {
    Ranks::SetUp();
    if (IsSkipped()) return;
    if (std::system("command -v python3 >/dev/null") != 0) GTEST_SKIP() << "no python3";
  }
  std::string command(const std::string& more) const {
    return "exec python3 -B '" + (source_dir / "bench/scaling/scaling.py").string() + "' '" +
           DELTATUNE_BINARY + "' --device cpu --card cpu-laptop --model '" + model.string() +
           "' --fault-model '" + model.string() + "' --tokens " + std::to_string(tokens) + " --work '" +
           (folder / "work").string() + "' --json '" + json_file().string() + "' --svg '" +
           (folder / "out.svg").string() + "' " + more + " >'" + (folder / "log").string() + "' 2>&1";
  }
  fs::path json_file() const { return folder / "out.json"; }
  json::Value result() const { return json::parse_file(json_file().string()); }
  std::string log() const { return slurp(folder / "log"); }
};

const json::Value& run_of(const json::Value& result, int64_t gpus) {
  for (const json::Value& run : result.at("runs").as_array()) {
    if (run.at("gpus").as_integer() == gpus) return run;
  }
  throw std::runtime_error("no such run");
}

TEST_F(Scaling, OneAndTwoRanksAreMeasuredBesideTheirProducts) {
  ASSERT_EQ(std::system(command("--gpus 1 2 --policy none --steps 3 --products none").c_str()), 0) << log();
  const json::Value all = result();
  EXPECT_EQ(all.at("layers").as_integer(), 2);
  for (const int64_t ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const json::Value& run = run_of(all, ranks);
    EXPECT_EQ(run.at("state").as_string(), "measured");
    EXPECT_EQ(run.at("losses").as_array().size(), 3U);
    for (const json::Value& loss : run.at("losses").as_array()) EXPECT_GT(loss.as_number(), 1);
    // All slots of the ranks' rows, in the time that the steps took: the first is warm-up.
    const json::Array& times = run.at("time_s").as_array();
    double seconds = 0;
    for (size_t i = 1; i < times.size(); ++i) seconds += times[i].as_number();
    const double speed = static_cast<double>(tokens) * static_cast<double>(times.size() - 1) / seconds;
    EXPECT_NEAR(run.at("tokens_per_s_per_gpu").at("slots").as_number(), speed, 1e-6 * speed);
    EXPECT_LE(run.at("tokens_per_s_per_gpu").at("real").as_number(), speed * (1 + 1e-9));
    EXPECT_GT(run.at("memory_bytes").as_number(), 0);
    // The plan is that of a laptop's processor with more threads.
    EXPECT_NEAR(run.at("memory_to_plan").as_number(),
                run.at("memory_bytes").as_number() / run.at("plan").at("memory_bytes").as_number(), 1e-12);
    EXPECT_GT(run.at("traced_step").at("kernels").as_number(), 20);
    const double products = run.at("products_alone_ms").as_number();
    EXPECT_GT(products, 0);
    EXPECT_NEAR(run.at("step_to_products").as_number(), run.at("step_ms").as_number() / products, 1e-9);
  }
  EXPECT_NE(slurp(folder / "out.svg").find("prefers-color-scheme: dark"), std::string::npos);
  // One row a step and two of them: other losses, but the same weights at the start.
  EXPECT_NEAR(run_of(all, 1).at("losses").as_array().front().as_number(),
              run_of(all, 2).at("losses").as_array().front().as_number(), 0.5);
}

TEST_F(Scaling, AKilledRankEndsAllAndHalfOfThemGoOn) {
  ASSERT_EQ(std::system(command("--gpus 2 --fault --fault-timeout 20").c_str()), 0) << log();
  const json::Value fault = result().at("fault");
  EXPECT_TRUE(fault.at("passed").as_bool());
  EXPECT_EQ(fault.at("exit_code").as_integer(), 5);
  EXPECT_EQ(fault.at("errors").as_integer(), 1);
  EXPECT_LE(fault.at("all_ended_after_s").as_number(), 20);
  const json::Value& resumed = fault.at("resumed");
  EXPECT_EQ(resumed.at("ranks").as_integer(), 1);
  EXPECT_EQ(resumed.at("steps").as_array().front().as_integer(), fault.at("saved_at_step").as_integer() + 1);
  // None where the next save came before the kill: then no step was taken twice.
  const json::Value& difference = resumed.at("largest_difference");
  if (!difference.is_null()) {
    EXPECT_LT(difference.as_number(), 1e-3);
  }
}

TEST_F(Scaling, WhatCannotBeRunIsSaidAndTheRestIsKept) {
  // Two ranks fit, a timeout cannot be met: the record says so, and the next call keeps both.
  EXPECT_NE(std::system(command("--gpus 1 --policy block --steps 2 --limit 0 --products").c_str()), 0);
  EXPECT_EQ(run_of(result(), 1).at("state").as_string(), "failed");
  EXPECT_NE(run_of(result(), 1).at("why").as_string().find("took more than 0 s"), std::string::npos);
  ASSERT_EQ(std::system(command("--gpus 2 --policy block --steps 2 --products --no-profile").c_str()), 0)
      << log();
  EXPECT_EQ(run_of(result(), 1).at("state").as_string(), "failed");
  EXPECT_EQ(run_of(result(), 2).at("state").as_string(), "measured");
}

TEST_F(Scaling, AnInterruptedCallKeepsItsSteps) {
  const std::string steps =
      "grep -c '\"event\": \"step\"' '" + (folder / "work/run/metrics.jsonl").string() + "' 2>/dev/null";
  const std::string script = "( " + command("--gpus 1 --policy block --steps 1000000 --products") +
                             " ) & p=$!\n" + "for i in $(seq 600); do [ \"$(" + steps +
                             ")\" -ge 2 ] 2>/dev/null && break; sleep 0.1; done\n"
                             "kill -TERM $p; wait $p; [ $? -eq 130 ]\n";
  write_text(folder / "interrupt.sh", script);
  EXPECT_EQ(std::system(("bash '" + (folder / "interrupt.sh").string() + "'").c_str()), 0) << log();
  const json::Value all = result();
  EXPECT_EQ(run_of(all, 1).at("state").as_string(), "interrupted");
  EXPECT_GE(run_of(all, 1).at("losses").as_array().size(), 2U);
}

}  // namespace
}  // namespace deltatune
