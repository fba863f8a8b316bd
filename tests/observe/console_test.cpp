// Progress lines: widths, fields, and what goes into a pipe.
#include "observe/console.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "base/log.h"

namespace deltatune {
namespace {

StepLine example() {
  StepLine line;
  line.step = 120;
  line.total_steps = 983;
  line.loss = 1.1834;
  line.grad_norm = 0.61;
  line.learning_rate = 9.7e-6;
  line.tokens_per_s = 31134;
  line.mfu = 0.603;
  line.mem_peak_gib = 71.2;
  line.mem_total_gib = 139.4;
  line.eta_s = 3660;
  return line;
}

Terminal terminal(int columns, bool unicode = true, bool colour = false) {
  Terminal result;
  result.tty = true;
  result.columns = columns;
  result.unicode = unicode;
  result.colour = colour;
  return result;
}

// Columns on a terminal: escape sequences take none, a UTF-8 character one.
size_t columns_of(const std::string& text) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm' && text[i] != 'K') ++i;
    } else {
      columns += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    }
  }
  return columns;
}

// What a Console wrote into a pipe.
template <class F>
std::string written(ProgressStyle style, const F& use) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  {
    Console console(style, terminal(100), ends[1]);
    use(console);
  }
  ::close(ends[1]);
  std::string text;
  char block[4096];
  for (ssize_t n; (n = ::read(ends[0], block, sizeof block)) > 0;) text.append(block, static_cast<size_t>(n));
  ::close(ends[0]);
  return text;
}

const double no_loss = std::numeric_limits<double>::quiet_NaN();

TEST(Console, PlainLineIsTheDocumentedOne) {
  EXPECT_EQ(
      plain_line(example(), "2026-11-30 10:22:07"),
      "2026-11-30 10:22:07 step    120/983  loss 1.1834  gnorm 0.61  lr 9.70e-06  tok/s 31134  mfu 60.3%  "
      "data wait 0.00s  mem 71.2GiB  eta 1h01m");
}

StepLine metered() {
  StepLine line = example();
  line.tokens_per_s_supervised = 28249;
  line.tokens_per_s_slots = 31834;
  line.roofline_share = 0.712;
  line.gpu_utilisation = 0.99;
  line.host_bound_share = 0.034;
  line.fill = 0.61;
  return line;
}

TEST(Console, MetersStandBesideEachOther) {
  EXPECT_EQ(
      plain_line(metered(), "2026-11-30 10:22:07"),
      "2026-11-30 10:22:07 step    120/983  loss 1.1834  gnorm 0.61  lr 9.70e-06  tok/s 31134 (28249 "
      "supervised, 31834 slots)  mfu 60.3%  roofline 71%  gpu 99%  host 3%  data wait 0.00s  mem 71.2GiB  "
      "eta 1h01m");
  const std::string wide = live_line(metered(), terminal(150), 1.2);
  EXPECT_NE(wide.find("mfu 60%  mem 71/139 GiB  eta 1h01m  gpu 99%  roofline 71%  host 3%  fill 61%"),
            std::string::npos)
      << wide;
  const std::string narrow = live_line(metered(), terminal(90), 1.2);
  EXPECT_NE(narrow.find("eta 1h01m"), std::string::npos) << narrow;
  EXPECT_EQ(narrow.find("roofline"), std::string::npos) << narrow;
  for (int columns = 1; columns <= 200; ++columns) {
    EXPECT_LE(columns_of(live_line(metered(), terminal(columns), 1.2)),
              static_cast<size_t>(std::max(columns - 1, 1)));
  }
}

TEST(Console, LiveLineHasAllFieldsWhereThereIsRoom) {
  const std::string line = live_line(example(), terminal(120), 1.2);
  for (const char* part : {"step 120/983", "12%", "loss 1.1834 \u2193", "31.1k tok/s", "mfu 60%",
                           "mem 71/139 GiB", "eta 1h01m", "\u2501", "\u2500"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  }
  EXPECT_NE(live_line(example(), terminal(120), 1.1).find("\u2191"), std::string::npos);
  EXPECT_EQ(live_line(example(), terminal(120), no_loss).find("\u2191"), std::string::npos);
}

TEST(Console, LinesOfARunOnSlowKernelsSaySo) {
  StepLine slow = example();
  slow.slow_kernels = true;
  EXPECT_NE(live_line(slow, terminal(120), no_loss).find("slow kernels"), std::string::npos);
  EXPECT_TRUE(plain_line(slow, "now").ends_with("  slow kernels")) << plain_line(slow, "now");
  EXPECT_EQ(plain_line(example(), "now").find("slow"), std::string::npos);
}

TEST(Console, LiveLineNeverWraps) {
  for (const bool colour : {false, true}) {
    for (int columns = 1; columns <= 200; ++columns) {
      const std::string line = live_line(example(), terminal(columns, true, colour), 1.2);
      EXPECT_LE(columns_of(line), static_cast<size_t>(std::max(columns - 1, 1))) << line;
    }
  }
}

TEST(Console, LiveLineIsAsciiWithoutUnicode) {
  for (const char c : live_line(example(), terminal(120, false), 1.2)) EXPECT_GT(c, 0);
}

TEST(Console, PlainStyleWritesLoggedStepsOnlyWithoutControlCharacters) {
  const std::string text = written(ProgressStyle::plain, [](Console& console) {
    console.step(example(), false);
    console.step(example(), true);
    console.phase("packing", 0, 4000);
    console.phase("packing", 1, 4000);
    console.phase("packing", 4000, 4000);
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("packing 4,000/4,000"), std::string::npos);
}

TEST(Console, LiveStyleUpdatesAtMostTenTimesASecondAndKeepsTheLast) {
  const std::string text = written(ProgressStyle::bar, [](Console& console) {
    for (int64_t i = 1; i <= 500; ++i) {
      StepLine line = example();
      line.step = i;
      console.step(line, true);
    }
  });
  EXPECT_LE(std::count(text.begin(), text.end(), '\r'), 15) << "500 steps within a moment";
  EXPECT_NE(text.find("step 500/983"), std::string::npos);
  EXPECT_TRUE(text.ends_with("\n"));
}

TEST(Console, LiveLineStepsAsideForLogLines) {
  testing::internal::CaptureStderr();
  const std::string text = written(ProgressStyle::bar, [](Console& console) {
    console.step(example(), true);
    log::warn("something");
  });
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_NE(logged.find("warning: something\n"), std::string::npos);
  const size_t wiped = text.find("\r\x1b[K");
  ASSERT_NE(wiped, std::string::npos);
  EXPECT_NE(text.find("step 120/983", wiped), std::string::npos) << "drawn again after the log line";
}

// The result of a phase is a log line; the live line of the phase must not stand there behind it.
TEST(Console, APhaseThatIsDoneLeavesNoLiveLine) {
  const std::string text = written(ProgressStyle::bar, [](Console& console) {
    console.phase("evaluating", 1, 2);
    console.phase("evaluating", 2, 2);
  });
  EXPECT_TRUE(text.ends_with("\r\x1b[K")) << text;
}

TEST(Console, TimeLeftIsInWholeSeconds) {
  StepLine line = example();
  line.eta_s = 5.2;
  EXPECT_TRUE(plain_line(line, "now").ends_with("  eta 5s")) << plain_line(line, "now");
  EXPECT_NE(live_line(line, terminal(120), no_loss).find("eta 5s"), std::string::npos);
}

TEST(Console, NoneIsSilentAndJsonIsEvents) {
  const auto use = [](Console& console) {
    console.phase("packing", 1, 2);
    console.step(example(), true);
  };
  EXPECT_EQ(written(ProgressStyle::none, use), "");
  const std::string text = written(ProgressStyle::json, use);
  EXPECT_EQ(json::parse(text, "console").at("step").as_integer(), 120);
}

TEST(Console, StyleFollowsOptionThenTerminal) {
  Terminal pipe;
  EXPECT_EQ(progress_style("auto", pipe), ProgressStyle::plain);
  EXPECT_EQ(progress_style("auto", terminal(80)), ProgressStyle::bar);
  EXPECT_EQ(progress_style("none", terminal(80)), ProgressStyle::none);
}

TEST(Console, EnvironmentIsRespected) {
  ::setenv("NO_COLOR", "1", 1);
  ::setenv("CLICOLOR_FORCE", "1", 1);
  ::setenv("COLUMNS", "57", 1);
  EXPECT_FALSE(terminal_of_stderr().colour);
  EXPECT_EQ(terminal_of_stderr().columns, 57);
  ::unsetenv("NO_COLOR");
  EXPECT_TRUE(terminal_of_stderr().colour);
  ::unsetenv("CLICOLOR_FORCE");
  ::unsetenv("COLUMNS");
}

}  // namespace
}  // namespace deltatune
