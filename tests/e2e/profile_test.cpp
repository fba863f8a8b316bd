// `deltatune profile`, and `profile` in train: what is printed, what is written, what is left alone.
#include <gtest/gtest.h>

#include "base/gzip.h"
#include "e2e/ranks.h"

namespace deltatune {
namespace {

struct ProfileVerb : testing::Test {
  TempFolder folder{"profile"};
  fs::path model = folder / "model";
  fs::path out = folder / "out";
  Keys keys;

  void SetUp() override {
    write_small_model(model);
    keys = small_keys(model, out);
  }
  json::Value profile(const std::string& name = "profile.json") const {
    return json::parse_file((out / name).string());
  }
};

TEST_F(ProfileVerb, PrintsTablesAndWritesNothingElse) {
  const ProgramResult run = run_verb("profile", keys, "--wait 2 --active 2 --progress none");
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* text : {"ops, per step", "matmul", "gated_delta_backward", "tracing: "})
    EXPECT_NE(run.out.find(text), std::string::npos) << text << "\n" << run.out;
  EXPECT_EQ(profile().at("steps").as_integer(), 2);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(out)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"profile.json", "trace"}));

  const ProgramResult inspected =
      run_deltatune("inspect '" + (out / "trace/rank0000.json.gz").string() + "' --json");
  ASSERT_EQ(inspected.code, 0) << inspected.err << inspected.out;
  const json::Value trace = json::parse(inspected.out, "inspect");
  EXPECT_TRUE(trace.at("problems").as_array().empty());
  std::map<std::string, int64_t> lanes;
  for (const json::Value& lane : trace.at("lanes").as_array())
    lanes[lane.at("lane").as_string()] = lane.at("events").as_integer();
  EXPECT_EQ(lanes["data"], 4) << "two rows in each of two steps";
  EXPECT_EQ(lanes["compute"], static_cast<int64_t>(2 * profile().at("launches").as_number()));
  EXPECT_GT(lanes["host"], 10);

  // A run of train may follow in the same folder, and keeps its files when it is profiled again.
  ASSERT_EQ(run_verb("train", with(keys, {{"max_steps", "2"}, {"save_only_model", "true"}})).code, 0);
  const std::string metrics = slurp(out / "metrics.jsonl");
  const ProgramResult again = run_verb("profile", keys, "--json --progress none");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out, "stdout").at("steps").as_integer(), 1);
  EXPECT_EQ(slurp(out / "metrics.jsonl"), metrics);
}

TEST_F(ProfileVerb, TrainWithProfileHasTheSameLosses) {
  const Keys short_run = with(keys, {{"max_steps", "5"}, {"save_steps", "0"}});
  ASSERT_EQ(run_verb("train", with(short_run, {{"output_dir", (folder / "plain").string()}})).code, 0);
  const ProgramResult run =
      run_verb("train", short_run, "--profile trace --profile-wait 0 --profile-active 2");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.err.find("profile of 2 steps"), std::string::npos) << run.err;
  EXPECT_EQ(profile().at("steps").as_integer(), 2);
  EXPECT_TRUE(profile().at("overhead").is_object());
  EXPECT_EQ(losses(out), losses(folder / "plain"));
  EXPECT_TRUE(fs::exists(out / "trace/rank0000.json.gz"));
}

TEST_F(ProfileVerb, NonsenseIsRefused) {
  const auto refused = [&](const std::string& more, const std::string& text) {
    const ProgramResult run = run_verb("train", keys, more);
    EXPECT_EQ(run.code, 2) << more;
    EXPECT_NE(run.err.find(text), std::string::npos) << run.err;
  };
  refused("--profile all", "profile must be one of off, ops, trace");
  refused("--profile ops --profile-active 0", "profile_active must be a whole number from 1");
  refused("--profile ops --profile-wait -1", "profile_wait must be a whole number from 0");
  refused("--profile ops --profile-wait 19", "the run has 20 steps, a cycle of the profiler 21");
  refused("--sort total", "unknown");
  EXPECT_EQ(run_verb("profile", keys, "--sort nothing").code, 2);
}

TEST_F(ProfileVerb, InspectSeesABrokenTrace) {
  write_text(folder / "broken.json.gz", "{\"traceEvents\":[7]}");
  const ProgramResult run = run_deltatune("inspect '" + (folder / "broken.json.gz").string() + "'");
  EXPECT_EQ(run.code, 3);
  EXPECT_NE(run.out.find("event 0: is no object"), std::string::npos) << run.out;
  GzipWriter bomb;  // 20 million values in a small file
  bomb.add("{\"traceEvents\":[1");
  const std::string ones(1 << 20, ',');
  for (int i = 0; i < 20; ++i) bomb.add(ones);
  write_text(folder / "bomb.json.gz", bomb.finish());
  const ProgramResult large = run_deltatune("inspect '" + (folder / "bomb.json.gz").string() + "'");
  EXPECT_EQ(large.code, 3);
  EXPECT_NE(large.err.find("16 million values"), std::string::npos) << large.err;
  write_text(folder / "none.json.gz", std::string("\x1f\x8b\x08", 3));
  EXPECT_EQ(run_deltatune("inspect '" + (folder / "none.json.gz").string() + "'").code, 3);
}

TEST_F(Ranks, ProfileOfRanksIsMerged) {
  const fs::path out = folder / "ranks";
  const ProgramResult run = run_verb("profile", to("ranks", 2, 1), "--progress none");
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* text : {"rank 0 of 2", "2 ranks, ms a step", "slowest: rank ", "communication: gather "})
    EXPECT_NE(run.out.find(text), std::string::npos) << text << "\n" << run.out;
  EXPECT_EQ(json::parse_file((out / "profile-rank0001.json").string()).at("rank").as_integer(), 1);
  for (const char* name : {"rank0000", "rank0001", "merged"}) {
    const ProgramResult trace =
        run_deltatune("inspect '" + (out / "trace" / (std::string(name) + ".json.gz")).string() + "' --json");
    ASSERT_EQ(trace.code, 0) << trace.out;
    std::map<int64_t, std::map<std::string, int64_t>> lanes;
    const json::Value root = json::parse(trace.out, "inspect");
    for (const json::Value& lane : root.at("lanes").as_array())
      lanes[lane.at("rank").as_integer()][lane.at("lane").as_string()] = lane.at("events").as_integer();
    EXPECT_EQ(lanes.size(), std::string(name) == "merged" ? 2U : 1U);
    for (auto& [rank, of_rank] : lanes) {
      EXPECT_GT(of_rank["gather"], 2) << name;
      EXPECT_GT(of_rank["reduce"], 2) << name;
      EXPECT_GT(of_rank["compute"], 50) << name;
    }
  }
}

}  // namespace
}  // namespace deltatune
