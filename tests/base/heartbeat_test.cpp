// Silence: when it is broken, by what, and that lines and thresholds are respected.
#include "base/heartbeat.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/log.h"

namespace deltatune {
namespace {

void wait(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

int64_t lines_with(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Heartbeat, SaysWhatIsGoingOnAfterSilence) {
  testing::internal::CaptureStderr();
  {
    const Heartbeat heartbeat("plan", 0.05);
    wait(0.2);
    set_activity("loading the weights");
    wait(0.2);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_GE(lines_with(text, "plan: still at it, "), 1) << text;
  EXPECT_GE(lines_with(text, "loading the weights: still at it, "), 1) << text;
}

TEST(Heartbeat, IsQuietWhileThereAreLines) {
  testing::internal::CaptureStderr();
  {
    const Heartbeat heartbeat("train", 30);
    log::info("a line");
    wait(0.1);
    EXPECT_LT(silence_s(), 10);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "a line\n");
}

TEST(Heartbeat, KeepsToTheThreshold) {
  const log::Level before = log::level();
  log::set_level(log::Level::warn);
  testing::internal::CaptureStderr();
  {
    const Heartbeat heartbeat("train", 0.02);
    wait(0.2);
  }
  log::set_level(before);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace deltatune
