// Curves in bounded memory: any number of points goes in, a few thousand stay.
//
// Series keeps extremes: when it is full, every run of four points becomes its lowest and its highest, in
// their order, so that a spike of one step survives any number of roundings. MeanRows keeps means, for values
// that are stacked on each other and must come from the same steps.
// Invariants: the first and the last point stay as they were given; adding costs O(1) amortised.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"

namespace deltatune {

/// A value over the step; NaN, infinity and what lies beyond 1e30 (no chart can scale it) are gaps.
struct Point {
  double x = 0;
  double y = 0;
};

class Series {
 public:
  /// Between capacity / 2 and capacity points stay, all of them until there are more. capacity >= 8.
  explicit Series(size_t capacity = 2000) : capacity_(capacity) {}
  void add(double x, double y);
  const std::vector<Point>& points() const { return points_; }
  /// How many were added.
  int64_t count() const { return count_; }
  /// {"x": [...], "y": [...]} of ten and six digits, null for gaps.
  json::Value to_json() const;

 private:
  void thin();

  size_t capacity_;
  int64_t count_ = 0;
  std::vector<Point> points_;
};

class MeanRows {
 public:
  /// Rows of `columns` values, of which at most `capacity` stay. capacity >= 4.
  explicit MeanRows(size_t columns, size_t capacity = 1000) : columns_(columns), capacity_(capacity) {}
  /// `values` has `columns` finite numbers.
  void add(double x, const std::vector<double>& values);
  size_t rows() const { return rows_.size(); }
  /// Steps that one row is the mean of (the last row may be of fewer).
  int64_t steps_per_row() const { return width_; }
  /// {"x": [...], "y": [[...] a column]}; x is that of the row's last step.
  json::Value to_json() const;

 private:
  struct Row {
    double x = 0;
    int64_t count = 0;
    std::vector<double> sums;
  };
  size_t columns_, capacity_;
  int64_t width_ = 1;
  std::vector<Row> rows_;
};

/// A number of so many significant digits, or null where it is not finite.
json::Value short_number(double value, int digits = 6);

}  // namespace deltatune
