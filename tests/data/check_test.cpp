// data/check: every bad row is named, and notes are told from bad rows.
#include "data/check.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/format.h"
#include "data/bad_rows.h"
#include "data/helpers.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

using testing_data::chat;
using testing_data::encode_letters;

CheckOptions check_options() {
  CheckOptions options;
  options.rows.max_length = 20;
  options.rows.max_tokens = 64;
  options.rows.vocab_size = 1000;
  options.control_tokens = {"<|im_end|>"};
  return options;
}

struct Result {
  CheckSummary summary;
  std::vector<Finding> findings;
  std::vector<const Finding*> of(const std::string& problem) const {
    std::vector<const Finding*> out;
    for (const Finding& finding : findings) {
      if (finding.problem == problem) out.push_back(&finding);
    }
    return out;
  }
};

Result check(const std::vector<fs::path>& files, const EncodeConversation& encode = encode_letters,
             const CheckOptions& options = check_options()) {
  Result out;
  out.summary = check_dataset(files, options, encode, [&](const Finding& f) { out.findings.push_back(f); });
  return out;
}

TEST(DataCheck, ShowsProgressWithTheTimeLeft) {
  const ScratchFolder scratch;
  std::string text;
  for (int i = 0; i < 9000; ++i) text += chat("q", format("{}", i)) + "\n";  // three blocks
  CheckOptions options = check_options();
  options.progress_after_s = 0;
  testing::internal::CaptureStderr();
  check({scratch.write("a.jsonl", text)}, encode_letters, options);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("checking: 4,096 rows"), std::string::npos) << said;
  EXPECT_NE(said.find(", eta "), std::string::npos) << said;
}

TEST(DataCheck, NamesAllFortyBadRows) {
  const std::vector<testing_data::BadRow> bad = testing_data::bad_rows();
  ASSERT_EQ(bad.size(), 40u);
  std::string text;
  for (size_t i = 0; i < bad.size(); ++i) text += chat("q", format("good {}", i)) + "\n" + bad[i].text + "\n";
  const ScratchFolder scratch;
  for (const bool with_encoder : {true, false}) {
    const Result result =
        check({scratch.write("bad.jsonl", text)}, with_encoder ? encode_letters : EncodeConversation());
    EXPECT_EQ(result.summary.rows, 80);
    EXPECT_EQ(result.summary.bad_rows, 40);
    EXPECT_FALSE(result.summary.clean());
    ASSERT_EQ(result.findings.size(), 40u);
    for (size_t i = 0; i < bad.size(); ++i) {
      const Finding& finding = result.findings[i];
      EXPECT_EQ(finding.problem, name_of(bad[i].problem)) << bad[i].text.substr(0, 200) << "\n"
                                                          << finding.what;
      EXPECT_TRUE(finding.bad);
      EXPECT_EQ(finding.line, static_cast<int64_t>(2 * i + 2));
      EXPECT_EQ(finding.row, static_cast<int64_t>(2 * i + 1));
      EXPECT_FALSE(finding.what.empty());
      EXPECT_FALSE(finding.fix.empty()) << finding.what;
      EXPECT_LT(finding.what.size(), 300u);
    }
  }
}

TEST(DataCheck, NotesAreNoBadRows) {
  const ScratchFolder scratch;
  const std::string text = chat("q", "one") + "\n" + chat("q", "") + "\n" + chat("q", "one") + "\n" +
                           chat("q", "a long answer of many letters") + "\n" + chat("<|im_end|>", "x") +
                           "\n" + R"({"input_ids": [1, 2], "labels": [-100, -100]})" + "\n" +
                           R"({"input_ids": [], "labels": []})" + "\n";
  const Result result = check({scratch.write("a.jsonl", text)});
  EXPECT_TRUE(result.summary.clean());
  EXPECT_EQ(result.summary.bad_rows, 0);
  ASSERT_EQ(result.of("duplicate").size(), 1u);
  EXPECT_EQ(result.of("duplicate")[0]->line, 3);
  EXPECT_TRUE(result.of("duplicate")[0]->what.ends_with("a.jsonl, line 1"))
      << result.of("duplicate")[0]->what;
  ASSERT_EQ(result.of("empty_assistant_turn").size(), 1u);
  EXPECT_EQ(result.of("empty_assistant_turn")[0]->line, 2);
  ASSERT_EQ(result.of("too_long").size(), 1u);
  EXPECT_EQ(result.of("too_long")[0]->line, 4);
  ASSERT_EQ(result.of("control_token").size(), 1u);
  EXPECT_EQ(result.of("control_token")[0]->line, 5);
  EXPECT_EQ(result.of("no_target").size(), 2u);  // the empty answer and the masked row
  EXPECT_EQ(result.of("empty").size(), 1u);
  // Two times 4 letters with 3 targets, 20 of 30 letters with 19, and "<|im_end|>x" with 1.
  EXPECT_EQ(result.summary.counts.tokens, 4 + 4 + 20 + 11);
  EXPECT_EQ(result.summary.counts.targets, 3 + 3 + 19 + 1);
}

TEST(DataCheck, WithoutATokenizerRowsAreCheckedUpToTheTemplate) {
  const ScratchFolder scratch;
  const Result result = check(
      {scratch.write("a.jsonl", chat("q", "one") + "\n" + chat("q", "two") + "\n" + chat("q", "one"))}, {});
  EXPECT_FALSE(result.summary.tokenised);
  EXPECT_EQ(result.summary.counts.tokens, 0);
  ASSERT_EQ(result.of("duplicate").size(), 1u);
  EXPECT_EQ(result.of("duplicate")[0]->line, 3);
}

TEST(DataCheck, AFileThatCannotBeReadIsOneFindingAndTheNextIsRead) {
  const ScratchFolder scratch;
  const std::string broken = scratch.write("broken.jsonl.gz", "\x1f\x8b\x08 not gzip at all");
  const std::string array = scratch.write("array.json", "[" + chat("q", "a") + ", {\"messages\": ");
  const std::string good = scratch.write("good.jsonl", chat("q", "a") + "\n{\n");
  const Result result = check({broken, array, good});
  EXPECT_EQ(result.summary.files, 3);
  EXPECT_EQ(result.summary.unreadable_files, 2);
  EXPECT_EQ(result.summary.bad_rows, 1);
  ASSERT_EQ(result.findings.size(), 3u);
  EXPECT_EQ(result.findings[0].file, broken);
  EXPECT_EQ(result.findings[1].file, array);
  EXPECT_EQ(result.findings[2].line, 2);
  EXPECT_FALSE(result.summary.clean());
}

}  // namespace
}  // namespace deltatune
