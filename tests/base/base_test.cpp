// base: files, hashes, Philox, the pool, suggestions.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/suggest.h"
#include "base/thread_pool.h"

namespace deltatune {
namespace {

TEST(ErrorText, ThreeLines) {
  const Error e(ErrorKind::data, "bad", "file x", "do y");
  EXPECT_EQ(e.text(), "error: bad\n  where: file x\n  fix:   do y");
  const Error odd(ErrorKind::data, "a\nb", std::string("\0\x1b[31m", 6), "\xc3\xa9");
  EXPECT_EQ(odd.text(), "error: a\\x0ab\n  where: \\x00\\x1b[31m\n  fix:   \xc3\xa9");
  EXPECT_EQ(exit_code(e.kind()), 3);
  EXPECT_EQ(e.within("row 3").where(), "row 3: file x");
}

TEST(Files, AtomicWriteReplacesAndMaps) {
  const fs::path dir = fs::path(testing::TempDir()) / format("dt_files_{}", getpid());
  fs::create_directories(dir);
  write_file_atomic(dir / "a", "one");
  write_file_atomic(dir / "a", "three");
  EXPECT_EQ(read_file(dir / "a"), "three");
  EXPECT_EQ(MappedFile(dir / "a").text(), "three");
  EXPECT_FALSE(fs::exists(dir / "a.tmp"));
  EXPECT_THROW(write_file_atomic(dir / "no" / "a", "x"), Error);
  EXPECT_THROW(MappedFile{dir}, Error);
  EXPECT_THROW(read_file(dir / "absent"), Error);
  fs::remove_all(dir);
}

// Known-answer vectors of Random123 for philox4x32-10 (kat_vectors): all zero, all ones.
TEST(Philox, KnownAnswers) {
  const Philox4 zero = philox(0, 0, 0);
  EXPECT_EQ(zero.x[0], 0x6627e8d5u);
  EXPECT_EQ(zero.x[1], 0xe169c58du);
  EXPECT_EQ(zero.x[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.x[3], 0x9b00dbd8u);
  const Philox4 ones = philox(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones.x[0], 0x408f276du);
  EXPECT_EQ(ones.x[1], 0x41c83b0eu);
  EXPECT_EQ(ones.x[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.x[3], 0x6d5451fdu);
}

TEST(ParallelFor, CoversEachIndexOnceAndRethrows) {
  std::vector<std::atomic<int>> hits(1001);
  parallel_for(1001, 7, [&](int64_t b, int64_t e, int worker) {
    EXPECT_LT(worker, thread_count());
    for (int64_t i = b; i < e; ++i) ++hits[static_cast<size_t>(i)];
  });
  for (const auto& h : hits) EXPECT_EQ(h, 1);
  EXPECT_THROW(parallel_for(100, 1, [](int64_t, int64_t, int) { throw std::runtime_error("x"); }),
               std::runtime_error);
  parallel_for(10, 1, [&](int64_t, int64_t, int) { parallel_for(10, 1, [](int64_t, int64_t, int) {}); });
}

TEST(Hash, LengthsAreSeparated) {
  EXPECT_NE(Hasher().update("ab").update("c").hex(), Hasher().update("a").update("bc").hex());
  EXPECT_EQ(hash_hex("x").size(), 32u);
}

TEST(Suggest, NearestWord) {
  const std::vector<std::string> known = {"learning_rate", "max_tokens", "max_steps"};
  EXPECT_EQ(nearest("learning_rte", known), "learning_rate");
  EXPECT_EQ(nearest("zzzzzz", known), "");
}

TEST(Format, Units) {
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_duration(3725), "1h02m");
}

}  // namespace
}  // namespace deltatune
