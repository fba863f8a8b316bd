// bench ladder on the CPU: rungs, the arithmetic between steps and hours, what depths keep.
#include "train/bench_ladder.h"

#include <gtest/gtest.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/heartbeat.h"
#include "base/rng.h"
#include "cpu/device.h"
#include "data/pack_report.h"
#include "model/model_run.h"

namespace deltatune {
namespace {

LadderOptions tiny_ladder(int devices) {
  LadderOptions options;
  options.step.model = tiny_config(false, 24);
  options.step.model_name = "tiny <&>";
  options.step.depths = {options.step.model.layers()};
  options.step.tokens = 96;
  options.step.storage = DType::f32;
  options.step.peak_tflop_s = 1;
  options.step.timed_seconds = 0.05;
  Rng rng(7, 7);
  for (int i = 0; i < 60; ++i) options.lengths.push_back(1 + static_cast<int32_t>(rng.below(96)));
  options.devices = devices;
  options.keep_of_all = Keep::all();
  options.sampled_rows = 3;
  return options;
}

TEST(BenchLadder, HoursAreStepsOfThatEpochTimesAStep) {
  const auto device = make_cpu_device();
  for (const int devices : {1, 3}) {
    const LadderOptions options = tiny_ladder(devices);
    const LadderReport report = bench_ladder(*device, options);
    StreamOptions stream;
    stream.max_tokens = 96;
    stream.world_size = devices;
    stream.max_segments = default_max_documents(96);
    const PackReport packs = pack_report(options.lengths, stream, true);
    ASSERT_EQ(report.rungs.size(), 3U);
    EXPECT_EQ(report.real_tokens, packs.tokens);
    for (const LadderRung& rung : report.rungs) {
      const PackLine& line = packs.lines[rung.what.batching == Batching::padded ? 0 : 2];
      EXPECT_EQ(rung.steps, line.steps) << rung.what.name;
      EXPECT_NEAR(rung.fill, line.fill, 1e-12);
      EXPECT_NEAR(rung.step_ms, rung.whole.pass_ms + rung.whole.update_ms / devices, 1e-12);
      EXPECT_NEAR(rung.hours, static_cast<double>(line.steps) * rung.step_ms / 3.6e6, 1e-12);
      EXPECT_NEAR(rung.tokens_per_s * rung.step_ms * 1e-3 * static_cast<double>(line.rows),
                  static_cast<double>(packs.tokens), 1e-6);
      EXPECT_NEAR(rung.mfu, 6 * rung.whole.parameters * rung.tokens_per_s / 1e12, 1e-12);
    }
    EXPECT_GT(report.rungs[0].steps, report.rungs[1].steps);
    EXPECT_FALSE(report.rungs[1].what.keep);
    EXPECT_TRUE(report.rungs[2].what.keep);
  }
}

TEST(BenchLadder, TableAndPictureShowEveryRung) {
  const auto device = make_cpu_device();
  const LadderReport report = bench_ladder(*device, tiny_ladder(1));
  const std::string text = report.to_text(), svg = report.to_svg();
  for (const LadderRung& rung : report.rungs) {
    EXPECT_NE(text.find(rung.what.name), std::string::npos) << text;
    EXPECT_NE(svg.find(rung.what.name), std::string::npos) << svg;
  }
  EXPECT_NE(svg.find("tiny &lt;&amp;>"), std::string::npos) << "names are escaped";
  EXPECT_EQ(report.to_json().at("rungs").as_array().size(), report.rungs.size());
}

// How far it is inside of a rung, where nothing else has been said for a while.
TEST(BenchLadder, IsNotSilentInsideOfARung) {
  const auto device = make_cpu_device();
  LadderOptions options = tiny_ladder(1);
  options.step.timed_seconds = 0.3;
  testing::internal::CaptureStderr();
  {
    const Heartbeat heartbeat("bench", 0.02);
    bench_ladder(*device, options);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* rung :
       {"rung 1 of 3, padded rows", "rung 2 of 3, + packed rows", "rung 3 of 3, + recompute: auto"}) {
    const std::string inside =
        std::string(rung) + ", " + counted(options.step.model.layers(), "layer") + ": timed step ";
    const size_t at = said.find(inside);
    ASSERT_NE(at, std::string::npos) << inside << "\n" << said;
    EXPECT_NE(said.substr(at, 200).find(" of "), std::string::npos);
    EXPECT_NE(said.substr(at, 200).find(": still at it, "), std::string::npos) << said.substr(at, 200);
  }
}

TEST(BenchLadder, ALengthAboveTheRowIsRefused) {
  const auto device = make_cpu_device();
  LadderOptions options = tiny_ladder(1);
  options.lengths[5] = 97;
  try {
    bench_ladder(*device, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(std::string(error.what()).find("97"), std::string::npos);
  }
}

TEST(BenchLadder, ConversationsOfOneTokenAloneAreRefused) {
  const auto device = make_cpu_device();
  LadderOptions options = tiny_ladder(1);
  options.lengths.assign(5, 1);
  EXPECT_THROW(bench_ladder(*device, options), Error);
}

TEST(BenchLadder, AllRungsOfAGpuOneChangeEach) {
  const std::vector<LadderStep> steps = ladder_steps(Target::cuda);
  ASSERT_EQ(steps.size(), 5U);
  for (size_t i = 1; i < steps.size(); ++i) {
    const LadderStep &a = steps[i - 1], &b = steps[i];
    const int changes =
        (a.plain != b.plain) + (a.batching != b.batching) + (a.keep != b.keep) + (a.graph != b.graph);
    EXPECT_EQ(changes, 1) << b.name;
  }
}

TEST(BenchLadder, ADepthKeepsTheShareThatTheWholeKeeps) {
  std::vector<bool> kinds;
  for (int b = 0; b < 64; ++b) kinds.push_back(b % 4 == 3);
  Keep all;
  all.blocks.resize(64);
  for (size_t b = 0; b < 64; ++b) {
    if (b < 16) all.blocks[b].add(SavedPart::mid);           // a quarter of either kind
    if (kinds[b]) all.blocks[b].add(SavedPart::projection);  // all of one kind
  }
  for (const int64_t depth : {4, 8, 16, 64}) {
    const Keep keep = keep_of_depth(all, kinds, depth);
    ASSERT_EQ(keep.blocks.size(), static_cast<size_t>(depth));
    int64_t mid = 0;
    for (int64_t b = 0; b < depth; ++b) {
      mid += keep.of(b).has(SavedPart::mid);
      EXPECT_EQ(keep.of(b).has(SavedPart::projection), kinds[static_cast<size_t>(b)]) << depth << " " << b;
    }
    EXPECT_NEAR(static_cast<double>(mid), static_cast<double>(depth) / 4, 1) << depth;
  }
}

}  // namespace
}  // namespace deltatune
