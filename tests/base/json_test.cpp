// base/json: order, spelling, refusals.
#include "base/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace deltatune::json {
namespace {

TEST(Json, KeepsOrderAndSpelling) {
  const Value v =
      parse(R"({"b": 1, "a": [1.0, 1e-7, 123456789012345678901, true, null, "\u00e9\ud83d\ude00"]})", "t");
  EXPECT_EQ(v.as_object()[0].first, "b");
  EXPECT_EQ(
      dump(v),
      "{\"b\": 1, \"a\": [1.0, 1e-7, 123456789012345678901, true, null, \"\xc3\xa9\xf0\x9f\x98\x80\"]}");
}

TEST(Json, FloatsRoundTripBitForBit) {
  for (const double d : {0.1, 1.0 / 3, 1e300, 5e-324, -0.0, 123456.0}) {
    EXPECT_EQ(parse(dump(Value(d)), "t").as_number(), d);
    EXPECT_FALSE(parse(dump(Value(d)), "t").is_integer());
  }
}

TEST(Json, RefusesBadTexts) {
  const std::string deep(100000, '[');
  for (const std::string& text : {std::string("{\"a\":1,\"a\":2}"), std::string("[1,"), std::string(""), deep,
                                  std::string("\"\\ud800\""), std::string("\"\xff\""), std::string("[1] x"),
                                  std::string("nan"), std::string("'a'")}) {
    EXPECT_THROW(parse(text, "t"), Error) << text.substr(0, 20);
  }
}

TEST(Json, ErrorNamesLineAndColumn) {
  try {
    parse("{\n  \"a\": tru\n}", "cfg.json");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::data);
    EXPECT_EQ(e.where().rfind("cfg.json, line 2", 0), 0u) << e.where();
  }
}

TEST(Json, WrongTypeIsAnErrorNotACrash) {
  EXPECT_THROW(Value("x").as_integer(), Error);
  EXPECT_THROW(Value(1).at("k"), Error);
  EXPECT_EQ(Value(1).find("k"), nullptr);
}

}  // namespace
}  // namespace deltatune::json
