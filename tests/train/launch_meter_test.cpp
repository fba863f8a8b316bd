// Host-bound time on scripted clocks: gaps between parts, parts at the pace of launches, graphs.
#include "train/launch_meter.h"

#include <gtest/gtest.h>

#include "cpu/device.h"
#include "ops/kernels.h"
#include "ops/op.h"

namespace deltatune {
namespace {

// A device whose clock is 1000 s ahead of the host's: what the host gives it starts when it is given, or when
// the work before is done.
class ScriptedStream final : public Stream {
 public:
  explicit ScriptedStream(Device& device) : Stream(device, cpu_kernels(), {}, "scripted") {}
  void record(Event&) override {}
  void wait(const Event&) override {}
  void sync() override {}
  void upload(Tensor, const void*) override {}
  void download(void*, CTensor) override {}
  void mark(Moment& moment) override {
    ++marks;
    moment.seconds = 1000 + std::max(host, free_at);
  }
  double seconds_between(const Moment& begin, const Moment& end) override {
    return end.seconds - begin.seconds;
  }

  // The host takes `launching` seconds to give work that takes the device `work`.
  void give(double launching, double work) {
    const double start = std::max(host, free_at);
    host += launching;
    free_at = std::max(start + work, host);
  }
  void wait_for_results() { host = std::max(host, free_at); }

  double host = 0, free_at = 0;
  int64_t marks = 0;
};

class LaunchMeterTest : public testing::Test {
 protected:
  std::unique_ptr<Device> device = make_cpu_device();
  ScriptedStream stream{*device};
  LaunchMeter meter{true, [this] { return stream.host; }};

  void part(double launching, double work, bool graph) {
    meter.begin_part(stream);
    stream.give(launching, work);
    meter.end_part(stream, graph);
  }
  double end() {
    meter.mark_results(stream);
    stream.wait_for_results();
    meter.end_step(stream);
    return meter.host_bound_seconds();
  }
};

TEST_F(LaunchMeterTest, ADeviceThatIsBehindIsNotHeldUp) {
  meter.begin_step(stream);
  part(0.01, 1, false);
  part(0.01, 2, false);
  EXPECT_NEAR(end(), 0, 1e-9);
}

TEST_F(LaunchMeterTest, LaunchesThatSetThePaceCountWhole) {
  meter.begin_step(stream);
  part(0.5, 0.1, false);
  part(0.01, 2, false);
  EXPECT_NEAR(end(), 0.5, 1e-9);
}

TEST_F(LaunchMeterTest, GapsBetweenGraphsCount) {
  meter.begin_step(stream);
  part(1e-5, 0.25, true);
  stream.host = 0.75;  // the host does something else
  part(1e-5, 0.25, true);
  EXPECT_NEAR(end(), 0.5, 1e-4);
}

TEST_F(LaunchMeterTest, WorkOfThePreviousStepIsNoGapAndPartsAfterTheResultsAreNotTheSteps) {
  meter.begin_step(stream);
  part(0.01, 1, false);
  meter.mark_results(stream);
  part(0.5, 0.5, false);  // the update
  meter.end_step(stream);
  EXPECT_NEAR(meter.host_bound_seconds(), 0, 1e-9);
  stream.free_at = stream.host + 3;  // which is still under way
  meter.begin_step(stream);
  part(0.01, 1, true);
  EXPECT_NEAR(end(), 0, 1e-9);
}

// Ops of a part, as the wrappers of src/ops announce them.
void op(ScriptedStream& stream, double launching, double work) {
  const OpScope scope(stream, Op::add, {}, {});
  stream.give(launching, work);
}

TEST_F(LaunchMeterTest, AHostThatIsHeldUpInTheMiddleOfAPartAndRunsAheadAgain) {
  meter.begin_step(stream);
  meter.begin_part(stream);
  for (int i = 0; i < 100; ++i) op(stream, 5e-6, 1e-4);  // 0.5 ms for the host, 10 ms for the device
  stream.host += 0.03;                                   // of which the device has work for 9.5 ms
  for (int i = 0; i < 100; ++i) op(stream, 5e-6, 1e-4);
  meter.end_part(stream, false);
  // The marks before the hold-up are at most 0.2 ms of launching apart: work of 40 ops, 4 ms.
  const double bound = end();
  EXPECT_GE(bound, 0.0205);
  EXPECT_LE(bound, 0.0205 + 0.0041);
}

TEST_F(LaunchMeterTest, AHoldUpThatTheDeviceDoesNotNoticeIsNone) {
  meter.begin_step(stream);
  meter.begin_part(stream);
  for (int i = 0; i < 100; ++i) op(stream, 5e-6, 1e-3);
  stream.host += 0.03;
  for (int i = 0; i < 100; ++i) op(stream, 5e-6, 1e-3);
  meter.end_part(stream, false);
  EXPECT_NEAR(end(), 0, 1e-9);
}

TEST_F(LaunchMeterTest, AStretchAtThePaceOfLaunchesIsTakenOutOfALongPart) {
  meter.begin_step(stream);
  meter.begin_part(stream);
  for (int i = 0; i < 1000; ++i) op(stream, 5e-6, 1e-6);  // 5 ms: launches set the pace
  for (int i = 0; i < 100; ++i) op(stream, 5e-6, 1e-3);   // 100 ms: they do not
  meter.end_part(stream, false);
  EXPECT_NEAR(end(), 5e-3, 3e-4);
}

TEST_F(LaunchMeterTest, CapturedOpsAndOtherStreamsGetNoMarks) {
  ScriptedStream other(*device);
  meter.begin_step(stream);
  meter.begin_part(stream);
  const int64_t before = stream.marks;
  meter.watch_ops(false);
  for (int i = 0; i < 10; ++i) op(stream, 1e-3, 1e-3);
  meter.watch_ops(true);
  for (int i = 0; i < 10; ++i) op(other, 1e-3, 1e-3);
  EXPECT_EQ(stream.marks, before);
  EXPECT_EQ(other.marks, 0);
  meter.end_part(stream, true);
  for (int i = 0; i < 10; ++i) op(stream, 1e-3, 1e-3);  // outside of a part
  EXPECT_EQ(stream.marks, before + 1);
}

TEST_F(LaunchMeterTest, MarksAreBoundedHoweverLongAStepIs) {
  for (int step = 0; step < 3; ++step) {
    meter.begin_step(stream);
    meter.begin_part(stream);
    const int64_t before = stream.marks;
    for (int i = 0; i < 10000; ++i) op(stream, 1e-3, 2e-3);
    EXPECT_LE(stream.marks - before, int64_t{LaunchMeter::most_marks}) << step;
    // From the second step on they are spread over all of it.
    if (step > 0) {
      EXPECT_LE(stream.marks - before, 130) << step;
    }
    meter.end_part(stream, false);
    end();
  }
}

TEST_F(LaunchMeterTest, NobodyIsLeftWatchingBehindAMeterThatHasGone) {
  {
    LaunchMeter gone(true, [this] { return stream.host; });
    gone.begin_step(stream);
    gone.begin_part(stream);
    EXPECT_NE(current_op_watch, nullptr);
  }
  EXPECT_EQ(current_op_watch, nullptr);
}

TEST_F(LaunchMeterTest, NothingIsMeasuredWhereTheHostIsTheDevice) {
  LaunchMeter off(false);
  off.begin_step(stream);
  off.begin_part(stream);
  off.end_part(stream, false);
  off.mark_results(stream);
  off.end_step(stream);
  EXPECT_LT(off.host_bound_seconds(), 0);
}

TEST_F(LaunchMeterTest, AStepWithoutResultsIsNotMeasured) {
  meter.begin_step(stream);
  part(0.5, 0.1, false);
  meter.begin_step(stream);
  EXPECT_LT(meter.host_bound_seconds(), 0);
}

}  // namespace
}  // namespace deltatune
