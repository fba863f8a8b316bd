// Windows of samples, what a throttled clock costs, warnings, and the thread that looks.
#include "observe/telemetry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace deltatune {
namespace {

GpuSample sample(double utilisation, double clock, uint64_t throttle) {
  GpuSample s;
  s.utilisation = utilisation;
  s.sm_clock_mhz = clock;
  s.sm_clock_max_mhz = 1980;
  s.power_w = 600;
  s.temperature_c = 40 + 10 * utilisation;
  s.throttle = throttle;
  return s;
}

// Half of the time at 1485 of 1980 MHz: an eighth of the speed.
TelemetryWindow throttled_half() {
  TelemetryWindow window;
  window.add(sample(1, 1980, 0));
  window.add(sample(0.5, 1485, 0x4));
  return window;
}

TEST(TelemetryWindow, MeansHighestsAndWhatThrottlingCosts) {
  const TelemetryWindow window = throttled_half();
  EXPECT_EQ(window.utilisation(), 0.75);
  EXPECT_EQ(window.throttled_share(), 0.5);
  EXPECT_EQ(window.lost_share(), 0.125);
  const json::Value entry = window.to_json(3, "0000:1b:00.0");
  EXPECT_EQ(entry.at("index").as_integer(), 3);
  EXPECT_EQ(entry.at("sm_clock_mhz").as_number(), 1732.5);
  EXPECT_EQ(entry.at("throttled_clock_mhz").as_number(), 1485);
  EXPECT_EQ(entry.at("temperature_c").as_number(), 50);
  EXPECT_EQ(entry.at("lost_share").as_number(), 0.125);
  EXPECT_EQ(json::dump(entry.at("throttle")), "[\"sw_power_cap\"]");
}

TEST(TelemetryWindow, IdlingAndChosenClocksAreNoThrottling) {
  TelemetryWindow window;
  window.add(sample(0, 345, 0x1));
  window.add(sample(1, 1200, 0x2));
  EXPECT_EQ(window.throttled_share(), 0);
  EXPECT_EQ(window.lost_share(), 0);
  EXPECT_EQ(TelemetryWindow().lost_share(), 0);
  EXPECT_FALSE(TelemetryWindow().utilisation().has_value());
}

TEST(HealthCheck, AThrottledClockIsToldOnceWithItsCost) {
  HealthCheck health;
  const json::Value entry = throttled_half().to_json(0, "0000:1b:00.0");
  const std::vector<std::string> said = health.judge(entry, 700);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(
      said[0],
      "GPU 0 (0000:1b:00.0): clocks throttled 50 % of the time (sw_power_cap), 1485 of 1980 MHz: costs up "
      "to 12 % of its speed, 100 tokens/s");
  EXPECT_TRUE(health.judge(entry, 700).empty());
  TelemetryWindow worse;
  worse.add(sample(1, 990, 0x40));
  EXPECT_EQ(health.judge(worse.to_json(0, "0000:1b:00.0"), 0).size(), 1u);
  // Another GPU has a history of its own; a little is nothing.
  EXPECT_EQ(health.judge(throttled_half().to_json(1, "0000:2c:00.0"), 700).size(), 1u);
  TelemetryWindow little;
  little.add(sample(1, 1950, 0x4));
  EXPECT_TRUE(health.judge(little.to_json(2, "bus"), 700).empty());
}

TEST(HealthCheck, ErrorsNameTheirGpu) {
  HealthCheck health;
  GpuSample s;
  s.ecc_uncorrected = 2;
  s.nvlink_errors = 7;
  s.xids = {79, 48};
  s.lost = true;
  TelemetryWindow window;
  window.add(s);
  const std::vector<std::string> said = health.judge(window.to_json(5, "0000:9f:00.0"), 0);
  ASSERT_EQ(said.size(), 4u);
  for (const std::string& text : said) EXPECT_TRUE(text.starts_with("GPU 5 (0000:9f:00.0): ")) << text;
  EXPECT_NE(said[0].find("2 memory errors"), std::string::npos);
  EXPECT_NE(said[1].find("7 NVLink errors"), std::string::npos);
  EXPECT_NE(said[2].find("XID 79, 48"), std::string::npos);
  EXPECT_NE(said[3].find("fallen off the bus"), std::string::npos);
  s.xids.clear();
  TelemetryWindow same;
  same.add(s);
  EXPECT_TRUE(health.judge(same.to_json(5, "0000:9f:00.0"), 0).empty());
}

TEST(HealthCheck, NvlinkErrorsAreToldWhenTheyAreTwiceAsMany) {
  HealthCheck health;
  std::vector<uint64_t> told;
  for (const uint64_t errors : {0, 1, 1, 2, 3, 4, 7, 8, 7000, 7001, 13999, 14000, 13000, 0, 5000, 6999}) {
    GpuSample s;
    s.nvlink_errors = errors;
    TelemetryWindow window;
    window.add(s);
    if (!health.judge(window.to_json(0, "bus"), 0).empty()) told.push_back(errors);
  }
  EXPECT_EQ(told, (std::vector<uint64_t>{1, 2, 4, 8, 7000, 14000, 5000}));
}

TEST(HealthCheck, EntriesOfAnyShapeAreJudged) {
  HealthCheck health;
  EXPECT_TRUE(
      health.judge(json::parse(R"({"index": "x", "lost_share": "no", "xid": 3})", "entry"), 1).empty());
  EXPECT_TRUE(health.judge({}, 1).empty());
}

TEST(Telemetry, WindowsAreTakenApart) {
  std::atomic<int> looks = 0;
  Telemetry telemetry(
      [&] {
        ++looks;
        return sample(1, 1980, 0);
      },
      1000);
  while (looks < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(telemetry.take(0).samples(), 2);
  EXPECT_GE(telemetry.take(1).samples(), 2);
}

TEST(Telemetry, ALostGpuEndsTheLooking) {
  std::atomic<int> looks = 0;
  Telemetry telemetry(
      [&] {
        GpuSample s;
        s.lost = ++looks == 3;
        return s;
      },
      1000);
  while (looks < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(looks, 3);
  EXPECT_EQ(telemetry.take().samples(), 3);
}

// A driver that does not answer must not keep the run from ending.
TEST(Telemetry, ALookThatHangsIsLeft) {
  const auto released = std::make_shared<std::atomic<bool>>(false);
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  const auto begun = std::make_shared<std::atomic<bool>>(false);
  {
    Telemetry telemetry([released, gone, begun] {
      *begun = true;
      while (!*released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      *gone = true;
      return GpuSample();
    });
    while (!*begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(*gone);
  *released = true;
  while (!*gone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace deltatune
