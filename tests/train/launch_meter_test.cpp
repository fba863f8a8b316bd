// Host-bound time on scripted clocks: gaps between parts, parts at the pace of launches, graphs.
#include "train/launch_meter.h"

#include <gtest/gtest.h>

#include "cpu/device.h"
#include "ops/kernels.h"

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
  void mark(Moment& moment) override { moment.seconds = 1000 + std::max(host, free_at); }
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
