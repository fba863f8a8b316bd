// data/lengths_file: what is read, and where reading ends.
#include "data/lengths_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

TEST(LengthsFile, ReadsOneLengthALine) {
  const ScratchFolder folder;
  const fs::path path = folder.path() / "lengths.txt";
  write_file_atomic(path, "# made up\n12\r\n\n  7 # seven\n8192");
  EXPECT_EQ(read_lengths(path, 8192), (std::vector<int32_t>{12, 7, 8192}));
  write_file_atomic(path,
                    "\xEF\xBB\xBF"
                    "5\n6\n");  // as some editors save text
  EXPECT_EQ(read_lengths(path, 8192), (std::vector<int32_t>{5, 6}));
  // Longer than one read of the file.
  std::string many;
  for (int i = 1; i <= 50000; ++i) many += std::to_string(i % 8192 + 1) + "\n";
  write_file_atomic(path, many);
  const std::vector<int32_t> lengths = read_lengths(path, 8192);
  ASSERT_EQ(lengths.size(), 50000u);
  for (int i = 1; i <= 50000; ++i) ASSERT_EQ(lengths[static_cast<size_t>(i - 1)], i % 8192 + 1);
}

TEST(LengthsFile, RefusesWhatIsNoLength) {
  const ScratchFolder folder;
  const fs::path path = folder.path() / "lengths.txt";
  struct Case {
    std::string text;
    std::string what;
    std::string line;
  };
  const std::vector<Case> cases = {{"5\n0\n", "length 0 is below 1", "line 2"},
                                   {"-3", "length -3 is below 1", "line 1"},
                                   {"1\n2\n8193\n", "8193 tokens does not fit max_tokens 8192", "line 3"},
                                   {"99999999999999999999", "does not fit max_tokens", "line 1"},
                                   {"1\n1.5", "is no length", "line 2"},
                                   {"many", "is no length", "line 1"},
                                   {"1 2", "is no length", "line 1"},
                                   {std::string("1\n\0\n", 4), "is no length", "line 2"},
                                   {"1\n" + std::string(201, ' '), "more than 200 bytes", "line 2"},
                                   {"", "no length in the file", "lengths.txt"},
                                   {"# nothing\n\n", "no length in the file", "lengths.txt"}};
  for (const Case& c : cases) {
    write_file_atomic(path, c.text);
    try {
      read_lengths(path, 8192);
      ADD_FAILURE() << c.what;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_NE(std::string(error.what()).find(c.what), std::string::npos) << error.what();
      EXPECT_NE(error.where().find(c.line), std::string::npos) << error.where();
      EXPECT_FALSE(error.fix().empty());
    }
  }
}

// Endless input ends at its first line.
TEST(LengthsFile, RefusesDevicesAndFolders) {
  EXPECT_THROW(read_lengths("/dev/zero", 8192), Error);
  EXPECT_THROW(read_lengths("/dev/null", 8192), Error);
  EXPECT_THROW(read_lengths("/", 8192), Error);
  EXPECT_THROW(read_lengths("/no/such/file", 8192), Error);
}

}  // namespace
}  // namespace deltatune
