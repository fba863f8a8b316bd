// UTF-8 checks, character classes of the newest tables, NFC with origins and its version limits.
#include "text/unicode.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace deltatune {
namespace {

std::string utf8(std::initializer_list<char32_t> code_points) {
  std::string out;
  for (const char32_t c : code_points) append_utf8(out, c);
  return out;
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), utf8_ok);
  EXPECT_EQ(find_invalid_utf8(std::string_view("a\0b", 3)), utf8_ok);
  EXPECT_EQ(find_invalid_utf8(utf8({0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF})),
            utf8_ok);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2U);
  EXPECT_EQ(find_invalid_utf8("a\xC1\xBF"), 1U);         // overlong
  EXPECT_EQ(find_invalid_utf8("\xE0\x9F\xBF"), 0U);      // overlong
  EXPECT_EQ(find_invalid_utf8("a\xED\xA0\x80"), 1U);     // surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0U);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("a\xE2\x82"), 1U);         // cut off
  EXPECT_EQ(find_invalid_utf8("\xFF"), 0U);
}

TEST(Utf8, ReplacesMaximalSubparts) {
  // The example of the Unicode Standard, table 3-11.
  EXPECT_EQ(replace_invalid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFD"
            "b\uFFFD"
            "c\uFFFD\uFFFD"
            "d");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("x\xF0\x9F\x98"), "x\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("gr\u00fc\u00df"), "gr\u00fc\u00df");
}

TEST(Utf8, CodePointsGoRound) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    size_t at = 0;
    ASSERT_EQ(next_code_point(text, at), c);
    ASSERT_EQ(at, text.size());
    ASSERT_EQ(find_invalid_utf8(text), utf8_ok);
  }
}

TEST(CharClasses, FollowTheNewestTables) {
  EXPECT_EQ(char_class('a'), CharClass::letter);
  EXPECT_EQ(char_class('7'), CharClass::digit);
  EXPECT_EQ(char_class(0xB2), CharClass::other_number);
  EXPECT_EQ(char_class(0x301), CharClass::mark);
  EXPECT_EQ(char_class(0x85), CharClass::space);
  EXPECT_EQ(char_class(0x3000), CharClass::space);
  EXPECT_EQ(char_class(0x180E), CharClass::other);  // was white space until Unicode 6.3
  EXPECT_EQ(char_class(0x200D), CharClass::other);
  EXPECT_EQ(char_class(0x1123F), CharClass::letter);  // Unicode 15
  EXPECT_EQ(char_class(0xCF3), CharClass::mark);      // Unicode 15
  EXPECT_EQ(char_class(0x11F50), CharClass::digit);   // Unicode 15
  EXPECT_EQ(char_class(0x1C89), CharClass::letter);   // Unicode 16
  EXPECT_EQ(char_class(0x110000), CharClass::other);
}

TEST(Nfc, ComposesReordersAndKeepsOrigins) {
  const NormalizedText cafe = normalize_nfc("xCafe\u0301!");
  EXPECT_EQ(cafe.text, "xCaf\u00e9!");
  EXPECT_EQ(cafe.source, (std::vector<uint32_t>{0, 1, 2, 3, 4, 4, 7}));
  // Classes 230 and 220: the dot below goes first and composes, the acute keeps its own origin.
  const NormalizedText moved = normalize_nfc("q\u0301\u0323");
  EXPECT_EQ(moved.text, "q\u0323\u0301");
  EXPECT_EQ(moved.source, (std::vector<uint32_t>{0, 3, 3, 1, 1}));
  EXPECT_EQ(normalize_nfc("a\u0301\u0323").text, "\u1ea1\u0301");
  // Equal classes do not pass each other.
  EXPECT_EQ(normalize_nfc("q\u0301\u0308").text, "q\u0301\u0308");
  // A mark with nothing before it stays.
  EXPECT_EQ(normalize_nfc("\u0301e\u0301").text, "\u0301\u00e9");
}

TEST(Nfc, SpecialCases) {
  EXPECT_EQ(normalize_nfc("\u1112\u1161\u11ab").text, "\ud55c");        // Hangul L V T
  EXPECT_EQ(normalize_nfc("\ud558\u11ab").text, "\ud55c");              // LV T
  EXPECT_EQ(normalize_nfc("\u212b\u2126").text, "\u00c5\u03a9");        // singletons
  EXPECT_EQ(normalize_nfc("\u0958").text, "\u0915\u093c");              // composition exclusion
  EXPECT_EQ(normalize_nfc("\uf900").text, "\u8c48");                    // compatibility ideograph
  EXPECT_EQ(normalize_nfc("\ufb01\u00b2").text, "\ufb01\u00b2");        // compatibility forms stay
  EXPECT_EQ(normalize_nfc("\u1100\u1161\u1161").text, "\uac00\u1161");  // no third part
  EXPECT_EQ(normalize_nfc("").text, "");
}

TEST(Nfc, NewerCharactersAreLeftAlone) {
  // U+105D2 U+0307 composes from Unicode 16 on, U+11935 U+11930 from 13 on; U+1E4EC (Unicode 15) has class
  // 232.
  for (const std::string& text : {utf8({0x105D2, 0x307}), utf8({0x11935, 0x11930}),
                                  utf8({'a', 0x345, 0x1E4EC}), utf8({'a', 0x1DF6, 0x334}), utf8({0x16D68})}) {
    EXPECT_EQ(normalize_nfc(text).text, text);
  }
  // The barrier only guards itself: what follows is normalised.
  EXPECT_EQ(normalize_nfc(utf8({'e', 0x301, 0x1E4EC, 0x301, 'e', 0x301})).text,
            utf8({0xE9, 0x1E4EC, 0x301, 0xE9}));
}

TEST(Nfc, PropertiesOnRandomText) {
  const std::vector<char32_t> letters{'a',   'e',    0xE9,   0x1100,  0x1161, 0x11A8, 0xAC00,
                                      0x9C7, 0x9BE,  0x212B, 0x301,   0x323,  0x327,  0x345,
                                      0x94D, 0x3099, 0x304B, 0x105D2, 0x307};
  Rng random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 8; ++i) append_utf8(text, letters[random.below(letters.size())]);
    const NormalizedText once = normalize_nfc(text);
    ASSERT_EQ(once.source.size(), once.text.size());
    ASSERT_EQ(find_invalid_utf8(once.text), utf8_ok);
    ASSERT_EQ(normalize_nfc(once.text).text, once.text);
    for (const uint32_t source : once.source) ASSERT_LT(source, text.size());
    if (!may_need_nfc(text)) {
      ASSERT_EQ(once.text, text);
    }
  }
}

TEST(Nfc, LongRunsOfMarksAreNotQuadratic) {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  const NormalizedText out = normalize_nfc(text);
  EXPECT_TRUE(out.text.starts_with("\u1ea1\u0323"));
  EXPECT_EQ(out.text.size(), 3 + 2 * 199999U);
}

}  // namespace
}  // namespace deltatune
