// One of something is one thing.
#include "base/counted.h"

#include <gtest/gtest.h>

namespace deltatune {
namespace {

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(2, "conversation"), "2 conversations");
  EXPECT_EQ(counted(12345, "token"), "12,345 tokens");
  EXPECT_EQ(counted(1, "retry", "retries"), "1 retry");
  EXPECT_EQ(counted(3, "retry", "retries"), "3 retries");
}

}  // namespace
}  // namespace deltatune
