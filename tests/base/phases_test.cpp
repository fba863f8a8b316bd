// Phases of a start, and files that are read in ranges.
#include "base/phases.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

TEST(Phases, CountFromTheStartOfTheProcess) {
  ::usleep(30'000);
  Phases phases;
  phases.end("before");
  ::usleep(20'000);
  phases.end("work");
  EXPECT_GE(phases.total(), 0.04);  // the start is known to a hundredth
  EXPECT_LT(phases.total(), 3600);
  ::usleep(10'000);
  phases.end("before");
  ASSERT_EQ(phases.all().size(), 2u);
  EXPECT_EQ(phases.all()[0].first, "before");
  const double total = phases.total(), work = phases.all()[1].second;
  phases.split("part", work / 4);
  ASSERT_EQ(phases.all().size(), 3u);
  EXPECT_EQ(phases.all()[1].first, "part");
  EXPECT_NEAR(phases.all()[2].second, work * 3 / 4, 1e-9);
  EXPECT_NEAR(phases.total(), total, 1e-9);
  EXPECT_NE(phases.text().find(" s: before "), std::string::npos) << phases.text();
}

TEST(RangeReader, ReadsRangesAndNamesAFileThatEndsEarly) {
  const ScratchFolder folder;
  const fs::path path = folder / "file";
  std::ofstream(path) << "0123456789";
  const RangeReader reader(path);
  char bytes[4] = {};
  reader.read(3, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(std::string(bytes, 4), "3456");
  try {
    reader.read(8, std::as_writable_bytes(std::span(bytes)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(error.text().find("has become shorter"), std::string::npos) << error.text();
  }
  EXPECT_THROW(RangeReader(folder / "absent"), Error);
  EXPECT_THROW(RangeReader(folder / "."), Error);
}

}  // namespace
}  // namespace deltatune
