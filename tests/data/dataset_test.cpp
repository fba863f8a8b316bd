// data/dataset: what is read, left out and counted.
#include "data/dataset.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/format.h"
#include "data/helpers.h"

namespace deltatune {
namespace {

using testing_data::chat;
using testing_data::encode_letters;

DatasetOptions small_options() {
  DatasetOptions options;
  options.max_length = 8;
  options.max_tokens = 16;
  options.vocab_size = 1000;
  return options;
}

TokenizedSet read_lines(const std::string& text, const DatasetOptions& options) {
  TokenizedSetBuilder builder(options, encode_letters);
  builder.add_lines(text, "rows.jsonl");
  return builder.finish();
}

Error error_of(const std::string& text, const DatasetOptions& options) {
  try {
    read_lines(text, options);
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "accepted: " << text;
  return Error(ErrorKind::internal, "");
}

TEST(Dataset, KeepsRowsInOrderAndLabels) {
  const TokenizedSet set = read_lines(chat("ab", "cd") + "\n\n" + chat("e", "f") + "\n", small_options());
  ASSERT_EQ(set.size(), 2);
  EXPECT_EQ(set.length(0), 4);
  EXPECT_EQ(set.ids(1)[1], 'f');
  EXPECT_FALSE(set.supervised(0, 1));
  EXPECT_TRUE(set.supervised(0, 2));
  EXPECT_TRUE(set.supervised(1, 1));
  EXPECT_EQ(set.targets(0), 2);
  EXPECT_EQ(set.line(1), 3);
  EXPECT_EQ(set.file(1), "rows.jsonl");
  EXPECT_EQ(set.counts().tokens, 6);
  EXPECT_EQ(set.counts().targets, 3);
}

TEST(Dataset, FirstTokenIsNoTarget) {
  const TokenizedSet set = read_lines(R"({"input_ids": [5, 6, 7], "labels": [5, -100, 7]})", small_options());
  EXPECT_EQ(set.counts().targets, 1);
  EXPECT_FALSE(set.supervised(0, 0));
  EXPECT_TRUE(set.supervised(0, 2));
  const Error e = error_of(R"({"input_ids": [5, 6], "labels": [5, -100]})", small_options());
  EXPECT_EQ(e.kind(), ErrorKind::data);  // its only label is on the first token: nothing is left
}

TEST(Dataset, CountsWhatOverflowDoes) {
  const std::string text = chat("aa", "bbbbbbbbbb") + "\n" + chat("aaaaaaaaaa", "b") + "\n" + chat("a", "b");
  DatasetOptions options = small_options();
  const TokenizedSet cut = read_lines(text, options);
  EXPECT_EQ(cut.size(), 2);
  EXPECT_EQ(cut.length(0), 8);
  EXPECT_EQ(cut.counts().truncated, 1);
  EXPECT_EQ(cut.counts().masked_by_overflow, 1);
  EXPECT_EQ(cut.counts().tokens_cut, 4 + 11);

  options.overflow = Overflow::drop;
  const TokenizedSet dropped = read_lines(text, options);
  EXPECT_EQ(dropped.size(), 1);
  EXPECT_EQ(dropped.counts().dropped, 2);
  EXPECT_EQ(dropped.counts().tokens_cut, 12 + 11);

  options.overflow = Overflow::split;
  const TokenizedSet split = read_lines(text, options);
  ASSERT_EQ(split.size(), 4);  // 8 + 4, (8 masked) + 3, 2
  EXPECT_EQ(split.length(1), 4);
  EXPECT_EQ(split.targets(1), 3);  // the first token of a later piece has lost its predecessor
  EXPECT_EQ(split.length(2), 3);
  EXPECT_EQ(split.counts().split, 2);
  EXPECT_EQ(split.counts().split_pieces_masked, 1);
  EXPECT_EQ(split.counts().tokens_cut, 8);
  EXPECT_EQ(std::vector<int32_t>(split.raw_lengths().begin(), split.raw_lengths().end()),
            (std::vector<int32_t>{12, 11, 2}));
}

TEST(Dataset, SkipsAndCounts) {
  DatasetOptions options = small_options();
  options.on_bad_row = OnBadRow::skip;
  const std::string text = chat("a", "b") + "\n{\"messages\": []}\n{oops\n[1]\n\"\xff\"\n{\"x\": 1}\n" +
                           R"({"messages": [{"role": "user", "content": "q"}]})" + "\n" + chat("a", "b") +
                           "\n" + R"({"input_ids": [], "labels": []})" + "\n" +
                           R"({"input_ids": [1,2], "labels": [-100,-100]})";
  const TokenizedSet set = read_lines(text, options);
  const DatasetCounts& counts = set.counts();
  EXPECT_EQ(set.size(), 2);
  EXPECT_EQ(counts.rows, 10);
  EXPECT_EQ(counts.skipped_rows(), 6);
  for (const RowProblem problem :
       {RowProblem::messages, RowProblem::malformed_json, RowProblem::not_an_object, RowProblem::invalid_utf8,
        RowProblem::unknown_schema, RowProblem::no_assistant}) {
    EXPECT_EQ(counts.skipped[static_cast<size_t>(problem)], 1) << name_of(problem);
  }
  EXPECT_EQ(counts.empty, 1);
  EXPECT_EQ(counts.all_masked, 1);
  EXPECT_EQ(counts.duplicates, 1);
  EXPECT_EQ(counts.rows, counts.skipped_rows() + counts.empty + counts.all_masked + 2);
}

TEST(Dataset, TheFirstBadRowStopsAndIsNamed) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += i == 123 || i == 400 ? "{\"messages\": 7}\n" : chat("a", "b") + "\n";
  const Error e = error_of(text, small_options());
  EXPECT_EQ(e.kind(), ErrorKind::data);
  EXPECT_EQ(e.where().rfind("rows.jsonl, line 124", 0), 0u) << e.text();
  EXPECT_NE(e.fix().find("on_bad_row: skip"), std::string::npos);
}

TEST(Dataset, RefusesNothingAndBadSizes) {
  EXPECT_EQ(error_of("\n \n", small_options()).kind(), ErrorKind::data);
  DatasetOptions options = small_options();
  options.max_length = 17;
  const Error e = error_of(chat("a", "b"), options);
  EXPECT_EQ(e.kind(), ErrorKind::usage);
  EXPECT_NE(std::string(e.what()).find("max_tokens 16"), std::string::npos) << e.text();
}

TEST(Dataset, ErrorsOfTheEncoderAreRowProblemsOnlyWhenTheyAreTheDatas) {
  const auto run = [](ErrorKind kind, OnBadRow policy) {
    DatasetOptions options = small_options();
    options.on_bad_row = policy;
    TokenizedSetBuilder builder(options, [kind](const Conversation& c) {
      if (c.line == 2) throw Error(kind, "No user query found", "", "add one");
      return encode_letters(c);
    });
    builder.add_lines(chat("a", "b") + "\n" + chat("a", "b"), "rows.jsonl");
    return builder.finish();
  };
  EXPECT_EQ(run(ErrorKind::data, OnBadRow::skip).counts().skipped[static_cast<size_t>(RowProblem::refused)],
            1);
  EXPECT_THROW(run(ErrorKind::data, OnBadRow::error), Error);
  EXPECT_THROW(run(ErrorKind::resource, OnBadRow::skip), Error);
}

TEST(Dataset, FingerprintSeesIdsLabelsAndBoundaries) {
  const auto print = [](const std::string& text) { return read_lines(text, small_options()).fingerprint(); };
  const std::string base = R"({"input_ids": [1, 2, 3, 4], "labels": [-100, 2, -100, 4]})";
  EXPECT_EQ(print(base), print("\n" + base + "\r\n"));
  EXPECT_NE(print(base), print(R"({"input_ids": [1, 2, 3, 5], "labels": [-100, 2, -100, 5]})"));
  EXPECT_NE(print(base), print(R"({"input_ids": [1, 2, 3, 4], "labels": [-100, 2, 3, 4]})"));
  EXPECT_NE(print(base), print("{\"input_ids\": [1, 2], \"labels\": [-100, 2]}\n"
                               "{\"input_ids\": [3, 4], \"labels\": [-100, 4]}"));
}

TEST(Dataset, GoldenCaseIsTakenAsItIs) {
  const std::string path = DELTATUNE_SOURCE_DIR "/tests/golden/tiny_tied/case.json";
  const json::Value golden = json::parse_file(path);
  DatasetOptions options;
  options.max_length = options.max_tokens = 512;
  options.vocab_size = 1000;
  options.keep_all_masked = true;
  TokenizedSetBuilder builder(options, {});
  builder.add_file(path);
  const TokenizedSet set = builder.finish();
  EXPECT_EQ(set.size(), static_cast<int64_t>(golden.at("sequences").as_array().size()));
  EXPECT_EQ(set.counts().targets, golden.at("supervised_tokens").as_integer());
}

}  // namespace
}  // namespace deltatune
