// The scanner against PCRE2 with the same pattern: every code point, and random mixtures of all classes.
#include "text/word_scanner.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "text/pretokenizer.h"
#include "text/tiny_tokenizer.h"
#include "text/unicode.h"

namespace deltatune {
namespace {

PreTokenizer with_pattern(const char* pattern, bool by_hand) {
  const json::Value split = json::Object{
      {"type", "Split"}, {"pattern", json::Object{{"Regex", pattern}}}, {"behavior", "Isolated"}};
  const json::Value bytes =
      json::Object{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return PreTokenizer::parse(json::Object{{"type", "Sequence"}, {"pretokenizers", json::Array{split, bytes}}},
                             "test", by_hand);
}

std::vector<uint32_t> ends(const PreTokenizer& tokenizer, std::string_view text) {
  std::vector<TextPiece> pieces;
  tokenizer.split(text, pieces);
  std::vector<uint32_t> out;
  for (const TextPiece& piece : pieces) out.push_back(piece.end);
  return out;
}

class WordScannerTest : public testing::TestWithParam<const char*> {
 protected:
  const PreTokenizer by_hand_ = with_pattern(GetParam(), true);
  const PreTokenizer pcre_ = with_pattern(GetParam(), false);
  void expect_equal(std::string_view text) {
    ASSERT_EQ(ends(by_hand_, text), ends(pcre_, text)) << json::quote(text);
  }
};

TEST_P(WordScannerTest, EveryCodePointCutsAlike) {
  std::string text;
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string point;
    append_utf8(point, c);
    text += "a" + point + " " + point + point + "1" + point + "\n" + point + " '" + point + "!";
    if (c % 1024 != 0) continue;
    expect_equal(text);
    if (HasFatalFailure()) return;
    text.clear();
  }
}

TEST_P(WordScannerTest, RandomTextsCutAlike) {
  const char* pieces[] = {"a",      "B",      "\u00e9", "\u4e2d", "\u0301", "\u0900", "7",       "\u0663",
                          "\u00bd", " ",      "  ",     "\t",     "\n",     "\r",     "\r\n",    "\u00a0",
                          "\u2028", "\u0085", "'",      "'s",     "'LL",    "'r",     "'\u017f", "'Ve",
                          "'d",     "'m",     "'T",     "!",      "...",    "_",      "\u2019",  "\U0001F600",
                          "\u180e", "\u200b", "\ufeff", "\u3000"};
  Rng random(23);
  for (int round = 0; round < 60000; ++round) {
    std::string text;
    for (uint64_t n = 1 + random.below(10); n > 0; --n) text += pieces[random.below(std::size(pieces))];
    expect_equal(text);
    if (HasFatalFailure()) return;
  }
}

TEST_P(WordScannerTest, LongRuns) {
  for (const char* run : {" ", "\n", " \n", "\n ", "a", "\u0301", "1", "!", "!\n", "' ", "\u3000"}) {
    std::string text;
    while (text.size() < 20000) text += run;
    for (const char* tail : {"", "x", "\n", " x", "!"}) {
      expect_equal(text + tail);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Qwen, WordScannerTest, testing::Values(qwen3_pattern, qwen3_5_pattern));

TEST(WordScanner, OnlyTheTwoPatterns) {
  EXPECT_TRUE(WordScanner::for_pattern(qwen3_pattern).has_value());
  EXPECT_TRUE(WordScanner::for_pattern(qwen3_5_pattern).has_value());
  EXPECT_FALSE(WordScanner::for_pattern(R"(\p{L}+)").has_value());
}

}  // namespace
}  // namespace deltatune
