// `deltatune profile`, and `profile` in train: what is printed, what is written, what is left alone.
#include <gtest/gtest.h>

#include "base/format.h"
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

TEST_F(ProfileVerb, OffOnItsCommandLineIsAMistakeInAConfigurationItIsForTrain) {
  expect_error(run_verb("profile", keys, "--profile off"), 2, "a profile without profiling");
  EXPECT_FALSE(fs::exists(out / "profile.json"));
  ASSERT_EQ(run_verb("profile", with(keys, {{"profile", "\"off\""}}), "--progress none").code, 0);
  EXPECT_EQ(profile().at("steps").as_integer(), 1);
}

TEST_F(ProfileVerb, InspectSeesABrokenTrace) {
  write_text(folder / "broken.json.gz", "{\"traceEvents\":[7]}");
  const ProgramResult run = run_deltatune("inspect '" + (folder / "broken.json.gz").string() + "'");
  EXPECT_EQ(run.code, 3);
  EXPECT_NE(run.out.find("event 0: is no object"), std::string::npos) << run.out;
  write_text(folder / "none.json.gz", std::string("\x1f\x8b\x08", 3));
  EXPECT_EQ(run_deltatune("inspect '" + (folder / "none.json.gz").string() + "'").code, 3);
}

// Small files that would fill the memory are refused in three lines, wherever they have it.
TEST_F(ProfileVerb, InspectRefusesBombs) {
  const auto refused = [&](const std::string& begin, const std::string& again, int64_t times,
                           const char* why) {
    GzipWriter bomb;
    bomb.add(begin);
    std::string piece;
    while (piece.size() < (1 << 20)) piece += again;
    for (int64_t i = 0; i < times; ++i) bomb.add(piece);
    write_text(folder / "bomb.json.gz", bomb.finish());
    const ProgramResult run = run_deltatune("inspect '" + (folder / "bomb.json.gz").string() + "'");
    expect_error(run, 3, why);
  };
  refused("{\"traceEvents\":[1", " ", 18, "bytes in one item");
  refused("{\"traceEvents\":[{\"name\":\"", "a", 18, "bytes in one item");
  refused("{\"traceEvents\":[1", ",1", 8, "more than 4,000,000 events");
  refused("{\"other\":[1", ",1", 4, "values in one item");
  refused("{\"traceEvents\":[1,[1", ",1", 4, "values in one item");
}

TEST_F(ProfileVerb, InspectOfManyLanesShowsTheBusiest) {
  std::string text = "{\"traceEvents\":[";
  constexpr int lanes = 600000;
  for (int i = 1; i <= lanes; ++i)
    text += format(R"({{"ph":"X","name":"a","pid":1,"tid":{},"ts":0,"dur":{}}},)", i, i);
  text += R"({"ph":"M","name":"thread_name","pid":1,"tid":600000,"args":{"name":"the longest"}}]})";
  write_text(folder / "lanes.json.gz", text);
  const std::string path = " '" + (folder / "lanes.json.gz").string() + "'";
  const ProgramResult run = run_deltatune("inspect" + path);
  EXPECT_EQ(run.code, 3);  // lanes without names
  EXPECT_LT(std::count(run.out.begin(), run.out.end(), '\n'), 60);
  EXPECT_NE(run.out.find("... and 599,980 more\n"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("   1 \"the longest\"                1      600.000\n"), std::string::npos)
      << run.out;
  const json::Value listed = json::parse(run_deltatune("inspect --json" + path).out, "inspect");
  EXPECT_EQ(listed.at("lanes").as_array().size() + static_cast<size_t>(listed.at("more_lanes").as_integer()),
            size_t{lanes});
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
