// base/yaml: quotes. Keys, limits and refusals are tested through the options loader in tests/cli.
#include "base/yaml.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace deltatune::yaml {
namespace {

TEST(YamlQuotes, OneThatIsNeverClosedIsAnError) {
  for (const char* text : {"run_name: 'abc\nmax_tokens: 512\n", "run_name: \"abc\nmax_tokens: 512\n",
                           "a: [ 'x', 'y ]\nb: 1\n", "a: \"x\\\"\nb: 1\n"}) {
    EXPECT_THROW(parse(text, "t.yaml"), Error) << text;
  }
}

TEST(YamlQuotes, ClosedOnesAndBlocksAreTaken) {
  const Node root =
      parse("a: 'it''s' # 'x\nb: \"q\\\"q\"\nc: |\n  it's\nd: don't\n\xc3\xa9: 'x'\n", "t.yaml");
  ASSERT_EQ(root.map.size(), 5u);
  EXPECT_EQ(root.map[0].second.text, "it's");
  EXPECT_EQ(root.map[1].second.text, "q\"q");
  EXPECT_EQ(root.map[2].second.text, "it's\n");
  EXPECT_EQ(root.map[4].second.text, "x");
}

}  // namespace
}  // namespace deltatune::yaml
