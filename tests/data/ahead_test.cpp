// data/ahead: everything in order, no more than asked for, errors in their place, an end at any time.
#include "data/ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

namespace deltatune {
namespace {

// 0, 1, ... count - 1.
std::function<std::optional<int>()> numbers(int count, std::atomic<int>* made = nullptr) {
  return [count, made, at = 0]() mutable -> std::optional<int> {
    if (at == count) return std::nullopt;
    if (made != nullptr) ++*made;
    return at++;
  };
}

TEST(Ahead, GivesEverythingInOrderAndThenNothing) {
  for (const size_t depth : {size_t{1}, size_t{3}, size_t{1000}}) {
    Ahead<int> ahead(numbers(500), depth);
    for (int i = 0; i < 500; ++i) ASSERT_EQ(ahead.next(), i);
    EXPECT_EQ(ahead.next(), std::nullopt);
    EXPECT_EQ(ahead.next(), std::nullopt);
  }
}

TEST(Ahead, MakesNoMoreThanItsDepthWithoutBeingAsked) {
  std::atomic<int> made = 0;
  Ahead<int> ahead(numbers(1000, &made), 3);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(ahead.next(), i);
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time to make too many
    ASSERT_LE(made, i + 1 + 3);
  }
}

TEST(Ahead, AnErrorComesBehindWhatWasMadeBefore) {
  Ahead<int> ahead(
      [at = 0]() mutable -> std::optional<int> {
        if (at == 2) throw std::runtime_error("third");
        return at++;
      },
      10);
  EXPECT_EQ(ahead.next(), 0);
  EXPECT_EQ(ahead.next(), 1);
  EXPECT_THROW(ahead.next(), std::runtime_error);
  EXPECT_THROW(ahead.next(), std::runtime_error);
}

TEST(Ahead, EndsWhileItWaitsAndWhileItMakes) {
  for (int taken = 0; taken < 4; ++taken) {
    std::atomic<int> made = 0;
    {
      Ahead<int> ahead(numbers(1 << 30, &made), 2);
      for (int i = 0; i < taken; ++i) ahead.next();
    }
    const int at_end = made;
    EXPECT_LE(at_end, taken + 2);
  }
}

}  // namespace
}  // namespace deltatune
