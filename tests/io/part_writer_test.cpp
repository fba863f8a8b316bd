// Lanes, cuts of ranges, and what comes of a piece that fails.
#include "io/part_writer.h"

#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <set>

#include "cpu/device.h"
#include "io/test_files.h"

namespace deltatune {
namespace {

TEST(StagingLanesTest, EveryIndexOnceAndTheFirstExceptionEndsIt) {
  const auto device = make_cpu_device();
  const StagingLanes lanes(*device);
  std::mutex mutex;
  std::set<int64_t> seen;
  lanes.run(1000, [&](int64_t i, StagingLanes::Lane& lane) {
    lane.first[StagingLanes::block + StagingLanes::page - 1] = lane.second[0] = std::byte{1};
    EXPECT_EQ(reinterpret_cast<uintptr_t>(lane.first) % StagingLanes::page, 0u);
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_TRUE(seen.insert(i).second);
  });
  EXPECT_EQ(seen.size(), 1000u);
  std::atomic<int64_t> calls{0};
  EXPECT_THROW(lanes.run(1'000'000,
                         [&](int64_t i, StagingLanes::Lane&) {
                           ++calls;
                           if (i == 20) throw Error(ErrorKind::resource, "the disk is full");
                         }),
               Error);
  EXPECT_LT(calls, 1'000'000);
  std::atomic<bool> stop{false};
  calls = 0;
  lanes.run(
      1'000'000, [&](int64_t, StagingLanes::Lane&) { stop = ++calls == 10; }, &stop);
  EXPECT_LT(calls, 1'000'000);
}

TEST(CutRange, CoversTheRangeInWholeElementsOfAtMostABlock) {
  constexpr size_t block = StagingLanes::block;
  for (const size_t unit : {1u, 2u, 4u, 8u}) {
    for (const size_t begin : std::array<size_t, 5>{0, 1, block - 1, block - 3, 5 * block + 7}) {
      for (const size_t count : std::array<size_t, 4>{0, 1, block / unit, 3 * block / unit + 5}) {
        size_t at = begin;
        cut_range(begin, count * unit, unit, [&](size_t from, size_t bytes) {
          EXPECT_EQ(from, at);
          EXPECT_GT(bytes, 0u);
          EXPECT_LE(bytes, block);
          EXPECT_EQ(bytes % unit, 0u);
          at += bytes;
        });
        EXPECT_EQ(at, begin + count * unit) << unit << " " << begin;
      }
    }
  }
}

TEST(WritePieces, AFailingPieceIsTheErrorOfAll) {
  const TempFolder dir("pieces");
  const auto device = make_cpu_device();
  const StagingLanes lanes(*device);
  const std::atomic<bool> stop{false};
  std::atomic<size_t> written{0};
  const std::vector<PartFile> files{{dir / "a", 300, true}, {dir / "unused", 10, false}};
  const auto pieces = [&](int bad) {
    std::vector<FilePiece> out;
    for (int i = 0; i < 3; ++i) {
      out.push_back({0, static_cast<size_t>(i) * 100, 100, [i, bad](std::byte* to, StagingLanes::Lane&) {
                       if (i == bad) throw Error(ErrorKind::diverged, "NaN");
                       std::fill(to, to + 100, static_cast<std::byte>('a' + i));
                     }});
    }
    return out;
  };
  EXPECT_THROW(write_pieces(files, pieces(1), lanes, stop, written), Error);
  written = 0;
  const std::vector<FileBlocks> blocks = write_pieces(files, pieces(-1), lanes, stop, written);
  EXPECT_EQ(written, 300u);
  EXPECT_EQ(read_file(dir / "a"), std::string(100, 'a') + std::string(100, 'b') + std::string(100, 'c'));
  EXPECT_FALSE(fs::exists(dir / "unused"));
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].blocks.size(), 3u);
  EXPECT_EQ(blocks[0].blocks[2].begin, 200u);
  EXPECT_TRUE(blocks[1].blocks.empty());
  EXPECT_THROW(
      write_pieces(std::vector<PartFile>{{dir / "no" / "a", 300, true}}, pieces(-1), lanes, stop, written),
      Error);
}

}  // namespace
}  // namespace deltatune
