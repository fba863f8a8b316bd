// data/prefetch: the same batches in the same order, cursors of what was taken, errors where they belong.
#include "data/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>

#include "base/error.h"
#include "data/batch_stream.h"
#include "data/helpers.h"

namespace deltatune {
namespace {

using testing_data::lognormal_lengths;
using testing_data::set_of_lengths;

StreamOptions small_options() {
  StreamOptions options;
  options.max_tokens = 64;
  options.gradient_accumulation_steps = 2;
  return options;
}

TEST(Prefetch, HandsOnTheSameBatchesAndCursors) {
  const TokenizedSet set = set_of_lengths(lognormal_lengths(120, 20, 0.6, 64, 1), 64);
  for (const int64_t depth : {0, 1, 2, 7}) {
    BatchStream plain(set, small_options());
    Prefetcher ahead(std::make_unique<BatchStream>(set, small_options()), depth);
    EXPECT_EQ(ahead.fingerprint(), plain.fingerprint());
    EXPECT_EQ(ahead.cursor(), plain.cursor());
    Cursor middle;
    for (int i = 0; i < 150; ++i) {
      const Batch a = plain.next(), b = ahead.next();
      ASSERT_EQ(a.tokens, b.tokens) << i;
      ASSERT_EQ(a.targets, b.targets);
      ASSERT_EQ(a.row, b.row);
      ASSERT_EQ(ahead.cursor(), plain.cursor());
      ASSERT_EQ(ahead.epoch_progress(), plain.epoch_progress());
      if (i == 60) middle = ahead.cursor();
    }
    plain.seek(middle);
    ahead.seek(middle);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(plain.next().tokens, ahead.next().tokens);
      ASSERT_EQ(ahead.cursor(), plain.cursor());
    }
  }
}

// A stream whose batches are numbers, which fails or stands still when told to.
class Numbers final : public RowStream {
 public:
  int64_t fail_at = -1;
  int64_t stand_still_at = -1;
  std::atomic<int64_t>* made = nullptr;

  Batch next() override {
    if (at_.row == stand_still_at) {
      go_on_.acquire();
      throw Error(ErrorKind::internal, "cancelled");
    }
    if (at_.row == fail_at) throw Error(ErrorKind::data, "a broken row", "file, line 7", "mend it");
    Batch batch;
    batch.row = at_.row++;
    if (made != nullptr) ++*made;
    return batch;
  }
  Cursor cursor() const override { return at_; }
  void seek(const Cursor& cursor) override { at_ = cursor; }
  double epoch_progress() const override { return static_cast<double>(at_.row); }
  const std::string& fingerprint() const override { return name_; }
  void cancel() override { go_on_.release(); }

 private:
  Cursor at_;
  std::string name_ = "numbers";
  std::counting_semaphore<> go_on_{0};
};

TEST(Prefetch, ErrorsArriveWithTheBatchThatMetThem) {
  for (const int64_t depth : {0, 3}) {
    auto numbers = std::make_unique<Numbers>();
    numbers->fail_at = 5;
    Prefetcher ahead(std::move(numbers), depth);
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(ahead.next().row, i);
    for (int again = 0; again < 2; ++again) {
      try {
        ahead.next();
        ADD_FAILURE();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::data);
        EXPECT_STREQ(error.what(), "a broken row");
        EXPECT_EQ(error.where(), "file, line 7");
        EXPECT_EQ(error.fix(), "mend it");
      }
    }
    EXPECT_EQ(ahead.cursor().row, 5);
    Cursor behind;
    behind.row = 6;
    ahead.seek(behind);
    EXPECT_EQ(ahead.next().row, 6);
  }
}

TEST(Prefetch, EndsWhileTheSourceStandsStill) {
  auto numbers = std::make_unique<Numbers>();
  numbers->stand_still_at = 2;
  Prefetcher ahead(std::move(numbers), 4);
  EXPECT_EQ(ahead.next().row, 0);
  EXPECT_EQ(ahead.next().row, 1);
  // The destructor must not wait for the third batch.
}

TEST(Prefetch, MakesNoMoreThanItsDepthAhead) {
  std::atomic<int64_t> made = 0;
  auto numbers = std::make_unique<Numbers>();
  numbers->made = &made;
  Prefetcher ahead(std::move(numbers), 3);
  EXPECT_EQ(made, 0) << "nothing before the first next()";
  for (int64_t taken = 1; taken <= 200; ++taken) {
    EXPECT_EQ(ahead.next().row, taken - 1);
    // The thread may hold one more that it made before the queue was full.
    EXPECT_LE(made, taken + 4);
  }
}

}  // namespace
}  // namespace deltatune
