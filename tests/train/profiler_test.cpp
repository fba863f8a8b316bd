// The profiler over real steps on the CPU: which steps count, that nothing is counted twice or changed, and
// times of streams that are threads.
#include "train/profiler.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "io/test_files.h"
#include "observe/device_card.h"
#include "train/step_roofline.h"
#include "train/tiny_engine.h"

namespace deltatune {
namespace {

using Stage = ProfileSchedule::Stage;

std::string stages(const ProfileSchedule& schedule, int64_t steps) {
  std::string out;
  for (int64_t i = 0; i < steps; ++i) out += "-wA"[static_cast<int>(schedule.stage(i))];
  return out;
}

TEST(ProfileScheduleTest, Cycles) {
  EXPECT_EQ(stages({1, 1, 1, 1}, 5), "-wA--");
  EXPECT_EQ(stages({2, 1, 3, 2}, 14), "--wAAA--wAAA--");
  EXPECT_EQ(stages({0, 0, 2, 2}, 5), "AAAA-");
  EXPECT_EQ(stages({0, 1, 1, 2}, 5), "wAwA-");
}

TEST(ProfileScheduleTest, ARunWithoutRoomForACycleIsRefused) {
  Config config;
  config.profile_wait = 3;
  EXPECT_EQ(profile_schedule(config, 5).cycle(), 5);
  try {
    profile_schedule(config, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.text().find("profile_wait 3 + profile_warmup 1 + profile_active 1"), std::string::npos);
  }
}

struct SmallRun {
  TempFolder folder{"profiler"};
  TokenizedSet set;
  std::unique_ptr<TinyEngine> tiny;
  std::unique_ptr<BatchStream> stream;
  std::unique_ptr<Trainer> trainer;
  Config config;

  explicit SmallRun(const std::string& level, StreamMode mode = StreamMode::direct) {
    std::vector<Document> documents;
    for (uint32_t i = 0; i < 12; ++i) documents.push_back(random_document(20 + i, 1, 24, i));
    set = set_of(documents, 64);
    EngineOptions options = tiny_options();
    options.keep = Keep::nothing();
    tiny = std::make_unique<TinyEngine>(options, make_cpu_device(mode));
    StreamOptions rows;
    rows.max_tokens = 64;
    rows.max_segments = 8;
    rows.gradient_accumulation_steps = 2;
    stream = std::make_unique<BatchStream>(set, rows);
    trainer = std::make_unique<Trainer>(tiny->engine, *stream, Schedule{"constant", 0.01, 0, 9}, 2);
    config.profile = level;
    config.output_dir = (folder / "out").string();
    fs::create_directories(config.output_dir);
    config.gradient_accumulation_steps = 2;
  }

  json::Value profiled(int64_t steps) {
    Profiler profiler(config, tiny->engine, steps);
    for (int64_t i = 0; i < steps; ++i) {
      profiler.before_step();
      trainer->step();
    }
    profiler.finish();
    EXPECT_EQ(current_trace, nullptr);
    return json::parse_file((fs::path(config.output_dir) / "profile.json").string());
  }
};

struct Sums {
  double calls = 0, bytes = 0, flops = 0, ms = 0;
};

std::map<std::string, Sums> totals(const json::Value& profile) {
  std::map<std::string, Sums> out;
  for (const json::Value& op : profile.at("ops").as_array()) {
    Sums& sum = out[op.at("op").as_string()];
    sum.calls += op.at("calls").as_number();
    sum.bytes += op.at("bytes").as_number();
    sum.flops += op.at("flops").as_number();
    sum.ms += op.at("device_ms").as_number();
  }
  return out;
}

void expect_counts(StreamMode mode) {
  SmallRun run("ops", mode);
  SmallRun plain("off", mode);
  run.config.profile_active = 2;
  const json::Value profile = run.profiled(5);
  const Stream& stream = plain.tiny->engine.stream();
  for (int i = 0; i < 2; ++i) plain.trainer->step();
  const auto before = stream.totals();
  for (int i = 0; i < 2; ++i) plain.trainer->step();
  const auto traced = totals(profile);
  EXPECT_EQ(profile.at("steps").as_integer(), 2);
  size_t ops = 0;
  for (size_t i = 0; i < static_cast<size_t>(Op::count); ++i) {
    const OpTotals& a = before[i];
    const OpTotals& b = stream.totals()[i];
    if (a.calls == b.calls) continue;
    ++ops;
    const std::string name = name_of(static_cast<Op>(i));
    ASSERT_TRUE(traced.count(name)) << name;
    const Sums& t = traced.at(name);
    EXPECT_DOUBLE_EQ(2 * t.calls, static_cast<double>(b.calls - a.calls)) << name;
    EXPECT_NEAR(2 * t.bytes, b.bytes - a.bytes, 1e-6 * b.bytes) << name;
    EXPECT_NEAR(2 * t.flops, b.flops - a.flops, 1e-6 * b.flops + 1e-9) << name;
    EXPECT_GT(t.ms, 0) << name;
  }
  EXPECT_GT(ops, 20U);
  plain.trainer->step();
  EXPECT_EQ(run.tiny->state(), plain.tiny->state()) << "tracing changes no bit";
}

TEST(ProfilerTest, CountsWhatTheStreamCounts) {
  expect_counts(StreamMode::direct);
}

// The meters run every row on the null table too, in the same thread.
TEST(ProfilerTest, TheStepOfTheRooflineIsNotCounted) {
  SmallRun plain("ops");
  SmallRun measured("ops");
  StepRoofline roofline(tiny_config(true, 24), true, tiny_options(), measured.tiny->device->facts(), 1,
                        device_card("h200"));
  measured.trainer->measure_roofline(roofline);
  const json::Value a = plain.profiled(4);
  const json::Value b = measured.profiled(4);
  EXPECT_EQ(a.at("launches").as_number(), b.at("launches").as_number());
  EXPECT_GT(roofline.seconds(), 0);
}

TEST(ProfilerTest, OpsOfAThreadedStreamAreTimedWhereTheyRun) {
  expect_counts(StreamMode::threaded);
}

TEST(ProfilerTest, PhasesAndWaitsAreThere) {
  SmallRun run("ops");
  const json::Value profile = run.profiled(4);
  std::map<std::string, double> phases;
  double busy = 0;
  for (const json::Value& op : profile.at("ops").as_array()) {
    phases[op.at("phase").as_string()] += op.at("device_ms").as_number();
    busy += op.at("device_ms").as_number();
    EXPECT_LE(op.at("device_ms").as_number(), profile.at("step_ms").as_number());
    if (op.at("op").as_string() == "matmul") {
      EXPECT_NE(op.at("shape").as_string(), "");
      EXPECT_NE(op.at("kernel").as_string(), "");
    }
  }
  for (const char* phase : {"forward", "recompute", "backward", "update"})
    EXPECT_GT(phases[phase], 0) << phase;
  EXPECT_NEAR(busy, profile.at("busy_ms").as_number(), 1e-6) << "one stream: nothing overlaps";
  EXPECT_LE(busy, profile.at("step_ms").as_number());
  EXPECT_GT(profile.at("data_wait_ms").as_number(), 0);
  EXPECT_TRUE(profile.at("overhead").is_object()) << "one step behind the cycle ran without tracing";
  EXPECT_FALSE(fs::exists(fs::path(run.config.output_dir) / "trace"));
}

TEST(ProfilerTest, RepeatsAddUpAndAnEarlyEndIsWritten) {
  SmallRun run("trace");
  run.config.profile_wait = 0;
  run.config.profile_repeat = 2;
  EXPECT_EQ(run.profiled(4).at("steps").as_integer(), 2);
  EXPECT_TRUE(fs::exists(fs::path(run.config.output_dir) / "trace/rank0000.json.gz"));
  SmallRun cut("ops");
  cut.config.profile_active = 9;
  Profiler profiler(cut.config, cut.tiny->engine, 11);
  for (int i = 0; i < 4; ++i) {
    profiler.before_step();
    cut.trainer->step();
  }
  profiler.finish();  // a signal has ended the run
  const json::Value profile = json::parse_file((fs::path(cut.config.output_dir) / "profile.json").string());
  EXPECT_EQ(profile.at("steps").as_integer(), 2);
  EXPECT_TRUE(profile.at("overhead").is_null());
}

TEST(ProfilerTest, FilesOfAnEarlierProfileAreRemoved) {
  for (const char* level : {"ops", "trace"}) {
    SmallRun run(level);
    const fs::path out = run.config.output_dir;
    fs::create_directories(out / "trace");
    for (const char* name : {"profile-rank0001.json", "profile-rank0002.json", "trace/rank0000.json.gz",
                             "trace/rank0001.json.gz", "trace/merged.json.gz"})
      write_text(out / name, "old");
    run.profiled(4);
    std::vector<std::string> left;
    for (const auto& entry : fs::recursive_directory_iterator(out))
      left.push_back(entry.path().lexically_relative(out).string());
    std::sort(left.begin(), left.end());
    const bool trace = std::string(level) == "trace";
    EXPECT_EQ(left, trace ? (std::vector<std::string>{"profile.json", "trace", "trace/rank0000.json.gz"})
                          : (std::vector<std::string>{"profile.json"}));
    if (trace) {
      EXPECT_NE(read_file(out / "trace/rank0000.json.gz"), "old");
    }
  }
}

TEST(ProfilerTest, AnErrorInATracedStepLeavesNoTraceBehind) {
  SmallRun run("ops");
  run.config.profile_wait = 0;
  {
    Profiler profiler(run.config, run.tiny->engine, 4);
    profiler.before_step();
    EXPECT_NE(current_trace, nullptr);
  }
  EXPECT_EQ(current_trace, nullptr);
  run.trainer->step();
}

}  // namespace
}  // namespace deltatune
