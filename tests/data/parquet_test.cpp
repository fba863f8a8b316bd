// Parquet rows are the JSON rows that the files were made from; damaged files are errors. Files and expected
// rows come from tools/make_parquet_fixtures.py.
#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "data/arrow_plugin.h"
#include "data/files.h"
#include "data/read_row.h"
#include "data/row_source.h"
#include "data/rows.h"
#include "scratch_folder.h"

#ifdef __SANITIZE_THREAD__
// Arrow's libraries are not instrumented: that a reference count orders two threads is not seen.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:libarrow.so\nrace:libparquet.so\n";
}
#endif

namespace deltatune {
namespace {

using testing_data::read_row;

const fs::path folder = fs::path(DELTATUNE_SOURCE_DIR) / "tests/data/parquet";

class Parquet : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!arrow_plugin(why)) GTEST_SKIP() << why;
  }
};

std::string rows_of(const fs::path& path, BlockSize block = {}) {
  std::string out;
  int64_t number = 0;
  visit_file(
      path,
      [&](const std::vector<RawRow>& rows) {
        for (const RawRow& row : rows) {
          EXPECT_EQ(row.number, ++number);
          out += json::dump(row.parse()) + "\n";
        }
        return true;
      },
      block);
  return out;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.text();
  }
  return "no error";
}

TEST_F(Parquet, IsKnownByItsFirstBytes) {
  const ScratchFolder scratch;
  const fs::path path = scratch.write("a.json", "PAR1....");
  const std::string said = error_of([&] { rows_of(path); });
  EXPECT_NE(said.find("Parquet"), std::string::npos) << said;
}

TEST_F(Parquet, RowsAreThoseOfJsonLinesWhateverTheCodec) {
  const std::string expected = rows_of(folder / "chat.jsonl");
  ASSERT_GT(expected.size(), 1000u);
  for (const char* codec : {"none", "snappy", "gzip", "zstd", "lz4", "brotli"}) {
    EXPECT_EQ(rows_of(folder / format("chat-{}.parquet", codec)), expected) << codec;
  }
  BlockSize small;
  small.rows = 3;
  EXPECT_EQ(rows_of(folder / "chat-zstd.parquet", small), expected);
}

TEST_F(Parquet, EveryTypeHasItsJsonForm) {
  EXPECT_EQ(rows_of(folder / "types.parquet"), rows_of(folder / "types.jsonl"));
}

TEST_F(Parquet, ThreadsMayMakeRowsOfOneBlock) {
  const std::string expected = rows_of(folder / "chat.jsonl");
  std::vector<std::string> made;
  visit_file(folder / "chat-snappy.parquet", [&](const std::vector<RawRow>& rows) {
    const size_t before = made.size();
    made.resize(before + rows.size());
    parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        made[before + i] = json::dump(rows[i].parse()) + "\n";
      }
    });
    return true;
  });
  std::string all;
  for (const std::string& row : made) all += row;
  EXPECT_EQ(all, expected);
}

TEST_F(Parquet, StopsWhenAsked) {
  BlockSize block;
  block.rows = 5;
  int visits = 0;
  visit_file(
      folder / "chat-none.parquet", [&](const std::vector<RawRow>&) { return ++visits < 2; }, block);
  EXPECT_EQ(visits, 2);
}

TEST_F(Parquet, ReadRowCountsOverFilesAndNamesThePlace) {
  std::string file;
  int64_t line = 0;
  const std::vector<fs::path> files = {folder / "types.parquet", folder / "chat-gzip.parquet"};
  EXPECT_EQ(read_row(files, 3 + 20, file, line).at("id").as_integer(), 20);
  EXPECT_EQ(line, 21);
  EXPECT_EQ(file, files[1].string());
  const std::string text = error_of([&] { read_row({folder / "bad-utf8.parquet"}, 1, file, line); });
  EXPECT_NE(text.find("not valid UTF-8"), std::string::npos) << text;
  EXPECT_NE(text.find("bad-utf8.parquet, row 2"), std::string::npos) << text;
  EXPECT_NE(text.find("messages[].content"), std::string::npos) << text;
}

TEST_F(Parquet, WhatJsonCannotSayIsAnError) {
  const std::string names = error_of([] { rows_of(folder / "same-name-twice.parquet"); });
  EXPECT_NE(names.find("two columns are called \"a\""), std::string::npos) << names;
  const std::string keys = error_of([] { rows_of(folder / "same-key-twice.parquet"); });
  EXPECT_NE(keys.find("duplicate key \"k\""), std::string::npos) << keys;
  const std::string empty = error_of([] { rows_of(folder / "no-rows.parquet"); });
  EXPECT_NE(empty.find("the file has no rows"), std::string::npos) << empty;
}

// Number of rows, or -1 for an Error; anything else fails the test.
int64_t outcome(std::string_view bytes) {
  int64_t rows = 0;
  try {
    visit_bytes(bytes, "damaged.parquet", [&](const std::vector<RawRow>& block) {
      for (const RawRow& row : block) {
        ++rows;
        try {
          row.parse();
        } catch (const RowError&) {
        }
      }
      return true;
    });
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::data) << e.text();
    EXPECT_NE(e.where().find("damaged.parquet"), std::string::npos) << e.text();
    EXPECT_FALSE(e.fix().empty()) << e.text();
    return -1;
  }
  return rows;
}

TEST_F(Parquet, CutOffAnywhereIsAnError) {
  const std::string whole = read_file(folder / "chat-snappy.parquet");
  EXPECT_EQ(outcome(whole), 41);
  for (size_t size = 0; size < whole.size(); size += size < 16 || size + 600 > whole.size() ? 1 : 13) {
    EXPECT_EQ(outcome(whole.substr(0, size)), -1) << size;
  }
}

TEST_F(Parquet, DamagedBytesNeverDoMoreThanFail) {
  Rng rng(7, 1);
  int failed = 0;
  const auto below = [&](size_t n) {
    return static_cast<size_t>(rng.uniform() * static_cast<double>(n)) % n;
  };
  for (const char* name : {"chat-none.parquet", "chat-zstd.parquet", "types.parquet"}) {
    const std::string whole = read_file(folder / name);
    for (int k = 0; k < 400; ++k) {
      std::string bytes = whole;
      for (size_t n = 1 + below(4); n > 0; --n)
        bytes[below(bytes.size())] ^= static_cast<char>(1 + below(255));
      failed += outcome(bytes) < 0 ? 1 : 0;
    }
  }
  EXPECT_GT(failed, 300);
}

TEST_F(Parquet, AnIndexBeyondItsDictionaryIsAnError) {
  const fs::path path = folder / "index-beyond-dictionary.parquet";
  const std::string said = error_of([&] { rows_of(path); });
  EXPECT_NE(said.find("of a dictionary of"), std::string::npos) << said;
}

TEST_F(Parquet, ChecksumsOfPagesAreVerified) {
  for (const char* version : {"v1", "v2"}) {
    std::string bytes = read_file(folder / format("checksum-{}.parquet", version));
    EXPECT_EQ(outcome(bytes), 1) << version;
    const size_t at = bytes.find("needle");
    ASSERT_NE(at, std::string::npos);
    bytes[at] = 'N';  // still a text, so that nothing else can notice
    EXPECT_EQ(outcome(bytes), -1) << version;
  }
}

TEST_F(Parquet, OtherFilesOfThatNameAreRefused) {
  ScratchFolder scratch;
  const std::string pointer = scratch.write("a.parquet", "version https://git-lfs.github.com/spec/v1\n");
  const std::string text = error_of([&] { rows_of(pointer); });
  EXPECT_NE(text.find("pointer of Git LFS"), std::string::npos) << text;
  EXPECT_NE(text.find("git lfs pull"), std::string::npos) << text;
  const std::string other = error_of([&] { rows_of(scratch.write("b.parquet", "id,text\n1,a\n")); });
  EXPECT_NE(other.find("no Parquet"), std::string::npos) << other;
}

// What a file is, its first bytes say.
TEST_F(Parquet, NamesDoNotDecide) {
  ScratchFolder scratch;
  const std::string lines = "{\"id\": 1}\n{\"id\": 2}\n";
  const std::string expected = rows_of(scratch.write("plain.jsonl", lines));
  EXPECT_EQ(rows_of(scratch.write("lines.parquet", lines)), expected);
  EXPECT_EQ(rows_of(scratch.write("bom.parquet", "\xEF\xBB\xBF" + lines)), expected);
  EXPECT_NE(rows_of(scratch.write("array.parquet", "[{\"id\": 1},\n{\"id\": 2}]")), "");
  EXPECT_EQ(rows_of(scratch.write("columns.jsonl", read_file(folder / "chat-zstd.parquet"))),
            rows_of(folder / "chat-zstd.parquet"));
}

TEST_F(Parquet, FoldersOfTheHubAreRead) {
  ScratchFolder hub;
  const std::string bytes = read_file(folder / "chat-zstd.parquet");
  for (const char* name :
       {"train_sft-00000-of-00002", "train_sft-00001-of-00002", "test_sft-00000-of-00001"}) {
    hub.write(format("data/{}.parquet", name), bytes);
  }
  hub.write("README.md",
            "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train_sft\n    path: "
            "data/train_sft-*\n  - split: test_sft\n    path: data/test_sft-*\n---\n");
  const std::vector<fs::path> files = dataset_files({hub.path().string()}, "train_sft");
  ASSERT_EQ(files.size(), 2u);
  std::string file;
  int64_t line = 0;
  EXPECT_EQ(read_row(files, 41 + 40, file, line).at("id").as_integer(), 40);
}

}  // namespace
}  // namespace deltatune
