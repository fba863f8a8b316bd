// Thinned curves, texts, and files that grow while they are read.
#include "observe/series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "observe/run_files.h"
#include "observe/run_folder.h"

namespace deltatune {
namespace {

TEST(Series, KeepsExtremesAndEndsOfAnyCurve) {
  std::mt19937 random(7);
  for (const int64_t count : {1, 7, 100, 101, 5000, 123457}) {
    Series series(100);
    double low = 1e9, high = -1e9;
    for (int64_t i = 0; i < count; ++i) {
      const double y = std::normal_distribution<double>(0, 1)(random) + (random() % 1000 == 0 ? 50 : 0);
      low = std::min(low, y);
      high = std::max(high, y);
      series.add(static_cast<double>(i), y);
    }
    const std::vector<Point>& points = series.points();
    EXPECT_LE(points.size(), 100u);
    EXPECT_EQ(points.front().x, 0);
    EXPECT_EQ(points.back().x, static_cast<double>(count - 1));
    const auto less = [](const Point& a, const Point& b) { return a.y < b.y; };
    EXPECT_EQ(std::min_element(points.begin(), points.end(), less)->y, low);
    EXPECT_EQ(std::max_element(points.begin(), points.end(), less)->y, high);
    EXPECT_TRUE(std::is_sorted(points.begin(), points.end(),
                               [](const Point& a, const Point& b) { return a.x < b.x; }));
    EXPECT_EQ(series.count(), count);
  }
}

TEST(Series, AllGapsStayBounded) {
  Series series(16);
  for (int i = 0; i < 1000; ++i) series.add(i, std::nan(""));
  EXPECT_LE(series.points().size(), 16u);
  EXPECT_EQ(json::dump(Series(8).to_json()), R"({"x": [], "y": []})");
}

TEST(MeanRows, KeepsTheMean) {
  MeanRows rows(2, 8);
  for (int i = 1; i <= 1000; ++i) rows.add(i, {static_cast<double>(i), 1.0});
  EXPECT_LE(rows.rows(), 8u);
  const json::Value out = rows.to_json();
  const json::Array& x = out.at("x").as_array();
  EXPECT_EQ(x.back().as_number(), 1000);
  double sum = 0, before = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double count = x[i].as_number() - before;  // one row a step
    before = x[i].as_number();
    sum += count * out.at("y").as_array()[0].as_array()[i].as_number();
    EXPECT_EQ(out.at("y").as_array()[1].as_array()[i].as_number(), 1);
  }
  EXPECT_NEAR(sum, 500500, 1);
}

TEST(CleanText, IsUtf8WithinTheLimit) {
  EXPECT_EQ(clean_text("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\xa2z"), "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\xa2z");
  EXPECT_EQ(clean_text("\xff\xc3(\xc0\xaf\xed\xa0\x80\n"),
            "?"
            "?(????? ");
  EXPECT_EQ(clean_text("\xc3\xa9\xc3\xa9\xc3\xa9", 5), "\xc3\xa9\xc3\xa9...");
  EXPECT_EQ(clean_text(std::string("a\0b", 3)), "a b");
}

TEST(RunFolder, ReadsOnlyWhatIsNew) {
  ScratchFolder folder;
  RunFolder run(folder / "");
  run.refresh();
  EXPECT_EQ(run.record().steps, 0);
  std::ofstream out(folder / "metrics.jsonl", std::ios::binary);
  const std::string second = step_text(2, 9);
  out << step_text(1, 9) << "\n" << second.substr(0, 40) << std::flush;
  run.refresh();
  EXPECT_EQ(run.record().steps, 1);
  out << second.substr(40) << "\n" << std::flush;
  run.refresh();
  run.refresh();
  EXPECT_EQ(run.record().steps, 2);
  EXPECT_TRUE(run.notes().empty());
  // A resumed run replaces the file by a shorter one.
  write_text(folder / "other", step_text(1, 9) + "\n");
  std::filesystem::rename(folder / "other", folder / "metrics.jsonl");
  run.refresh();
  EXPECT_EQ(run.record().steps, 1);
}

TEST(RunFolder, ALineInPiecesOfManyChunksIsOneLine) {
  ScratchFolder folder;
  std::string text;
  for (int i = 1; i <= 9000; ++i) text += step_text(i, 9000) + "\n";
  ASSERT_GT(text.size(), size_t{3} << 20);
  write_text(folder / "metrics.jsonl", text);
  RunFolder run(folder / "");
  run.refresh();
  EXPECT_EQ(run.record().steps, 9000);
  EXPECT_TRUE(run.notes().empty());
}

TEST(RunFolder, AFolderOfNoRunIsRefused) {
  ScratchFolder folder;
  EXPECT_THROW(check_run_folder(folder / ""), Error);
  std::filesystem::create_directory(folder / "metrics.jsonl");  // a folder in its place
  RunFolder run(folder / "");
  run.refresh();
  EXPECT_EQ(run.notes().size(), 1u);
}

}  // namespace
}  // namespace deltatune
