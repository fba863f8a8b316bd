// Items one at a time: the same values as a parse of the whole, whatever the pieces; limits; what is no list.
#include "base/json_stream.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace deltatune::json {
namespace {

// A reader that gives at most `most` bytes a call.
ByteReader in_pieces(std::string_view text, size_t most) {
  return [=](std::span<char> to) mutable {
    const size_t count = std::min({most, to.size(), text.size()});
    std::copy_n(text.begin(), count, to.begin());
    text.remove_prefix(count);
    return count;
  };
}

TEST(JsonStream, VisitsWhatAParseOfTheWholeHas) {
  const std::string text =
      R"({"a": [1, {"list": [5]}], "list": [1, -2.50, "x\u00e9", [], [1, [2]], {"k": {"list": [7]}}, null], "b": {}})";
  const Value whole = parse(text, "whole");
  for (const size_t most : {1, 2, 7, 1000}) {
    Array items;
    EXPECT_TRUE(
        for_each_item(in_pieces(text, most), "list", "here", [&](const Value& v) { items.push_back(v); }));
    EXPECT_EQ(dump(Value(items)), dump(whole.at("list"))) << most;
  }
}

TEST(JsonStream, NoListIsNone) {
  const auto found = [](std::string_view text) {
    return for_each_item(in_pieces(text, 5), "list", "here", [](const Value&) { ADD_FAILURE(); });
  };
  for (const char* text :
       {"{}", "[]", "7", R"({"list": 7})", R"({"list": {"list": 1}})", R"([{"list": []}])"})
    EXPECT_FALSE(found(text)) << text;
  EXPECT_TRUE(found(R"({"list": []})"));
}

TEST(JsonStream, StopsAtWhatIsNoJsonAndAtItsLimits) {
  const auto refused = [](const std::string& text, const char* why) {
    const ItemLimits limits{1 << 16, 100};
    try {
      for_each_item(
          in_pieces(text, 1 << 14), "list", "here", [](const Value&) {}, limits);
      ADD_FAILURE() << text.substr(0, 50);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      EXPECT_NE(error.where().find("here, byte "), std::string::npos) << error.where();
    }
  };
  refused(R"({"list": [1, 2)", "unexpected end");
  refused(R"({"list": [1 2]})", "malformed");
  refused(R"({"list": [1]} 1)", "malformed");
  refused("{\"list\": [{\"a\": 1, \"a\": 2}]}", "duplicate key");
  std::string many = "1";
  for (int i = 0; i < 200; ++i) many += ",1";
  refused("{\"list\": [1, [" + many + "]]}", "more than 100 values");
  refused("{\"other\": [" + many + "], \"list\": []}", "more than 100 values");
  refused("{\"list\": [\"" + std::string(1 << 18, 'a') + "\"]}", "bytes in one item");
  refused("{\"list\": [1, " + std::string(1 << 18, ' ') + "2]}", "bytes in one item");
  // The limits are an item's, not the list's.
  int64_t sum = 0;
  std::string list = "{\"list\": [1";
  for (int i = 0; i < 100000; ++i) list += ", 1";
  EXPECT_TRUE(for_each_item(in_pieces(list + "]}", 1000), "list", "here",
                            [&](const Value& v) { sum += v.as_integer(); }, {1 << 16, 100}));
  EXPECT_EQ(sum, 100001);
}

}  // namespace
}  // namespace deltatune::json
