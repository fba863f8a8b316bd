// Pieces of the Qwen patterns and of other settings; translation of patterns; limits and refusals.
#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "text/regex_syntax.h"
#include "text/tiny_tokenizer.h"
#include "text/unicode.h"

namespace deltatune {
namespace {

using Strings = std::vector<std::string>;

json::Value split_step(const std::string& pattern, const char* behavior = "Isolated", bool invert = false) {
  json::Value step;
  step.set("type", "Split");
  step.set("pattern", json::Object{{"Regex", pattern}});
  step.set("behavior", behavior);
  step.set("invert", invert);
  return step;
}

json::Value byte_level(bool prefix_space = false, bool use_regex = false) {
  return json::Object{{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"use_regex", use_regex}};
}

json::Value sequence(json::Array steps) {
  return json::Object{{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

Strings pieces(const PreTokenizer& tokenizer, std::string_view text) {
  std::vector<TextPiece> found;
  tokenizer.split(text, found);
  Strings out;
  for (const TextPiece& piece : found) {
    out.push_back((piece.space_before ? "_" : "") +
                  std::string(text.substr(piece.begin, piece.end - piece.begin)));
  }
  return out;
}

PreTokenizer with_pattern(const std::string& pattern) {
  return PreTokenizer::parse(sequence({split_step(pattern), byte_level()}), "test");
}

std::string error_of(const json::Value& value) {
  try {
    PreTokenizer::parse(value, "file");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_FALSE(error.where().empty());
    EXPECT_FALSE(error.fix().empty());
    return error.what();
  }
  return "no error";
}

TEST(PreTokenizer, QwenPatternsFollowTheSpecification) {
  const PreTokenizer tokenizer = with_pattern(qwen3_5_pattern);
  EXPECT_EQ(pieces(tokenizer, "Hello, world!"), (Strings{"Hello", ",", " world", "!"}));
  EXPECT_EQ(pieces(tokenizer, "it'S 1234"), (Strings{"it", "'S", " ", "1", "2", "3", "4"}));
  EXPECT_EQ(pieces(tokenizer, " \t\n\r\n  "), (Strings{" \t\n\r\n", "  "}));
  EXPECT_EQ(pieces(tokenizer, "    x"), (Strings{"   ", " x"}));
  EXPECT_EQ(pieces(tokenizer, "a \n\n b"), (Strings{"a", " \n\n", " b"}));
  EXPECT_EQ(pieces(tokenizer, "x!?\r\n\ny"), (Strings{"x", "!?\r\n\n", "y"}));
  EXPECT_EQ(pieces(tokenizer, "\u0301!I"), (Strings{"\u0301", "!I"}));
  EXPECT_EQ(pieces(tokenizer, "\u0928\u092e\u0938\u094d\u0924\u0947 x"),
            (Strings{"\u0928\u092e\u0938\u094d\u0924\u0947", " x"}));
  EXPECT_EQ(pieces(tokenizer, "\u0661\u00b2"), (Strings{"\u0661", "\u00b2"}));
  EXPECT_EQ(pieces(tokenizer, std::string_view("a\0b", 3)), (Strings{"a", std::string("\0b", 2)}));
  EXPECT_EQ(pieces(tokenizer, ""), Strings{});
  // Without \p{M} a mark ends the word.
  EXPECT_EQ(pieces(with_pattern(qwen3_pattern), "\u0928\u094d\u0924"), (Strings{"\u0928", "\u094d\u0924"}));
}

TEST(PreTokenizer, ClassesDoNotDependOnTheLibrarysUnicodeVersion) {
  const PreTokenizer tokenizer = with_pattern(qwen3_5_pattern);
  // Letters of Unicode 15 and 16, a mark of 15 between letters, digits of 15 and 16, U+180E is no white
  // space.
  EXPECT_EQ(pieces(tokenizer, "a\U0001123Fb"), (Strings{"a\U0001123Fb"}));
  EXPECT_EQ(pieces(tokenizer, "a\u1c89b\ua7cb"), (Strings{"a\u1c89b\ua7cb"}));
  EXPECT_EQ(pieces(tokenizer, "a\u0cf3b"), (Strings{"a\u0cf3b"}));
  EXPECT_EQ(pieces(tokenizer, "\U00011F50\U00010D40"), (Strings{"\U00011F50", "\U00010D40"}));
  EXPECT_EQ(pieces(tokenizer, "  \u180e!"), (Strings{" ", " \u180e!"}));
  EXPECT_EQ(pieces(with_pattern(R"(\d)"), "a\U00011F50b"), (Strings{"a", "\U00011F50", "b"}));
  // The stand-in for a new letter is not in a range that a pattern lists.
  EXPECT_EQ(pieces(with_pattern("[\\u4e00-\\u9fa5]+"), "\u1c89\u4e2d"), (Strings{"\u1c89", "\u4e2d"}));
  // Every code point falls in exactly the class of the tables.
  const PreTokenizer classes = with_pattern(R"([\p{L}]|[\p{M}]{2}|\d{3}|[\p{N}]{4}|\s{5})");
  const size_t lengths[] = {1, 1, 2, 3, 4, 5};
  for (char32_t c = 0; c < 0x40000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const CharClass wanted = char_class(c);
    std::string run;
    const size_t length = lengths[static_cast<size_t>(wanted)];
    for (size_t i = 0; i < length; ++i) append_utf8(run, c);
    const Strings expected =
        wanted == CharClass::other ? Strings{"\x01" + run + "\x01"} : Strings{"\x01", run, "\x01"};
    ASSERT_EQ(pieces(classes, "\x01" + run + "\x01"), expected) << static_cast<uint32_t>(c);
  }
}

TEST(PreTokenizer, BehavioursAndSequences) {
  const auto make = [](const json::Value& value) { return PreTokenizer::parse(value, "test"); };
  const json::Value digits = split_step(R"(\p{N}+)", "Removed");
  EXPECT_EQ(pieces(make(sequence({digits, byte_level()})), "ab12cd3"), (Strings{"ab", "cd"}));
  const json::Value words = split_step(R"(\p{L}+)", "Removed", true);
  EXPECT_EQ(pieces(make(sequence({words, byte_level()})), "ab12cd3"), (Strings{"ab", "cd"}));
  // Later steps see one piece at a time: no look-behind across a cut.
  const json::Value behind = split_step("(?<=1)b");
  EXPECT_EQ(pieces(make(sequence({split_step("1"), behind, byte_level()})), "1bb"), (Strings{"1", "bb"}));
  // Empty matches cut.
  EXPECT_EQ(pieces(make(sequence({split_step("(?=[A-Z])"), byte_level()})), "aBcDE"),
            (Strings{"a", "Bc", "D", "E"}));
  EXPECT_EQ(pieces(make(sequence({split_step("x*"), byte_level()})), "xx\u00e9"), (Strings{"xx", "\u00e9"}));
  json::Value literal = split_step("");
  literal.set("pattern", json::Object{{"String", "a.b"}});
  EXPECT_EQ(pieces(make(sequence({literal, byte_level()})), "axba.bc"), (Strings{"axb", "a.b", "c"}));
}

TEST(PreTokenizer, ByteLevelAloneAndPrefixSpace) {
  const auto make = [](bool prefix, bool regex) {
    return PreTokenizer::parse(byte_level(prefix, regex), "test");
  };
  EXPECT_EQ(pieces(make(false, true), "it's 1234  x"), (Strings{"it", "'s", " 1234", " ", " x"}));
  EXPECT_EQ(pieces(make(false, false), "it's 12"), (Strings{"it's 12"}));
  EXPECT_EQ(pieces(make(true, true), "hi you"), (Strings{"_hi", " you"}));
  EXPECT_EQ(pieces(make(true, true), " hi"), (Strings{" hi"}));
  EXPECT_EQ(pieces(make(true, true), "\nhi"), (Strings{"_", "\n", "hi"}));
  // The defaults of the format are add_prefix_space and use_regex.
  EXPECT_EQ(pieces(PreTokenizer::parse(json::Object{{"type", "ByteLevel"}}, "test"), "a1"),
            (Strings{"_a", "1"}));
}

TEST(PreTokenizer, LongInputsNeitherCrashNorCrawl) {
  const PreTokenizer tokenizer = with_pattern(qwen3_5_pattern);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(pieces(tokenizer, std::string(10000, ' ')).size(), 1U);
  EXPECT_EQ(pieces(tokenizer, std::string(1000000, ' ') + "x").size(), 2U);
  EXPECT_EQ(pieces(tokenizer, std::string(1000000, 'x')).size(), 1U);
  EXPECT_EQ(pieces(tokenizer, std::string(1000000, '!')).size(), 1U);
  EXPECT_EQ(pieces(tokenizer, std::string(1000000, '\n')).size(), 1U);
  EXPECT_EQ(pieces(tokenizer, std::string(300000, '7')).size(), 300000U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  // Groups need memory per repetition: more than the stack of the compiled code.
  EXPECT_EQ(pieces(with_pattern("(?:a|b)+c"), std::string(300000, 'a') + "c").size(), 1U);
}

TEST(PreTokenizer, CatastrophicPatternsEndInAnError) {
  const PreTokenizer tokenizer = with_pattern("(?:a+)+[bc]");
  std::vector<TextPiece> out;
  try {
    tokenizer.split(std::string(200, 'a'), out);
    FAIL() << "the match ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(std::string(error.what()).find("match limit"), std::string::npos) << error.what();
  }
}

TEST(PreTokenizer, RefusesWhatItDoesNotImplement) {
  EXPECT_EQ(error_of(json::Value()), "the tokenizer has no pre_tokenizer");
  EXPECT_EQ(error_of(json::Object{{"type", "Metaspace"}}),
            "pre-tokenizer type \"Metaspace\" is not supported");
  EXPECT_EQ(error_of(sequence({split_step("a")})), "the pre_tokenizer has no ByteLevel step");
  EXPECT_EQ(error_of(sequence({byte_level(), split_step("a")})),
            "a Split step behind ByteLevel is not supported");
  EXPECT_EQ(error_of(sequence({split_step("a", "MergedWithNext"), byte_level()})),
            "split behaviour \"MergedWithNext\" is not supported");
  EXPECT_NE(error_of(sequence({split_step("(a"), byte_level()})).find("does not compile"), std::string::npos);
  json::Value typo = byte_level();
  typo.set("add_prefix_spce", true);
  EXPECT_EQ(error_of(typo), "unknown key \"add_prefix_spce\"");
  EXPECT_NE(error_of(sequence({split_step(std::string(100000, 'a')), byte_level()})).find("does not compile"),
            std::string::npos);
}

TEST(RegexSyntax, PassesTheCommonSubset) {
  EXPECT_EQ(translate_pattern(qwen3_5_pattern, "t").text, qwen3_5_pattern);
  EXPECT_EQ(translate_pattern(qwen3_5_pattern, "t").foreign_property, "");
  EXPECT_EQ(translate_pattern("\\p{Lu}\\p{L}", "t").foreign_property, "Lu");
  EXPECT_EQ(translate_pattern("\\u4e00-\\x41\\x{1F600}", "t").text, "\\x{4e00}-\\x{41}\\x{1F600}");
  EXPECT_EQ(translate_pattern("(?i)a{2,3}?b++|[^\\]a&b]", "t").text, "(?i)a{2,3}?b++|[^\\]a&b]");
  EXPECT_EQ(translate_pattern("\\p{L}?+{x}", "t").text, "\\p{L}?+{x}");
  EXPECT_EQ(literal_pattern("a.(\u00e9 "), "a\\x{2e}\\x{28}\u00e9\\x{20}");
}

TEST(RegexSyntax, RefusesWhatMeansSomethingElse) {
  for (const char* pattern :
       {"\\w+",    "\\b",     "\\h",    "\\R",         "\\X",     "\\K",   "\\G",   "\\v",     "\\1",
        "\\Qa\\E", "[\\w]",   "[a[b]]", "[[:alpha:]]", "[a&&b]",  "[]a]",  "[a",    "(?m:a)",  "(?s)a",
        "a(?i)b",  "(?<n>a)", "(?R)",   "(?",          "(*UTF)a", "a{,3}", "a{2}+", "a{2,3}+", "a{2}?",
        "\\xE9",   "\\u12",   "\\x{}",  "\\x{41",      "\\pL",    "\\p{L", "a\\"}) {
    EXPECT_THROW(translate_pattern(pattern, "t"), Error) << pattern;
  }
}

}  // namespace
}  // namespace deltatune
