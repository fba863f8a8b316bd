// Silence: when it is broken, by what, and that lines and thresholds are respected.
#include "base/heartbeat.h"

#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
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

// The times of such lines that end in `end`, in the order of the lines.
std::vector<double> times_of(const std::string& text, const std::string& end) {
  std::vector<double> out;
  std::istringstream lines(text);
  const std::string before = "still at it, ";
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(before);
    if (at != std::string::npos && line.ends_with(end))
      out.push_back(std::stod(line.substr(at + before.size())));
  }
  return out;
}

TEST(Heartbeat, NamesATimeThatIsRightAndNeverZero) {
  testing::internal::CaptureStderr();
  const Stopwatch clock;
  {
    const Heartbeat heartbeat("train", 0.1);
    for (int step = 0; step < 12; ++step) {  // an activity that is always new
      set_activity("step " + std::to_string(step));
      wait(0.06);
    }
    wait(1.2);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  // Of the verb while the activity is young, then the activity's own, which began 0.66 s later.
  const std::vector<double> verb = times_of(text, "s since the start");
  ASSERT_GE(verb.size(), 2u) << text;
  EXPECT_GE(verb.front(), 0.1) << text;
  for (size_t i = 1; i < verb.size(); ++i) EXPECT_GT(verb[i], verb[i - 1]) << text;
  const std::vector<double> own = times_of(text, "s so far");
  ASSERT_FALSE(own.empty()) << text;
  for (const double seconds : own) EXPECT_TRUE(seconds >= 1 && seconds <= clock.seconds() - 0.66) << text;
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
