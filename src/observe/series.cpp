// Thinning of curves.
#include "observe/series.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {

json::Value short_number(double value, int digits) {
  if (!std::isfinite(value)) return {};
  return json::Float{value, format("{:.{}g}", value, digits)};
}

void Series::add(double x, double y) {
  points_.push_back({x, std::fabs(y) <= 1e30 ? y : std::nan("")});
  ++count_;
  if (points_.size() > capacity_) thin();
}

void Series::thin() {
  std::vector<Point> kept{points_.front()};
  const size_t last = points_.size() - 1;
  for (size_t begin = 1; begin < last; begin += 4) {
    const size_t end = std::min(begin + 4, last);
    const Point* low = nullptr;
    const Point* high = nullptr;
    const Point* gap = nullptr;
    for (size_t i = begin; i < end; ++i) {
      const Point& p = points_[i];
      if (std::isnan(p.y)) {
        gap = &p;
        continue;
      }
      if (low == nullptr || p.y < low->y) low = &p;
      if (high == nullptr || p.y > high->y) high = &p;
    }
    if (low == nullptr) {
      kept.push_back(*gap);
      continue;
    }
    kept.push_back(*std::min(low, high));  // both lie in points_: the earlier one first
    if (low != high) kept.push_back(*std::max(low, high));
  }
  kept.push_back(points_[last]);
  points_ = std::move(kept);
}

json::Value Series::to_json() const {
  json::Array x, y;
  for (const Point& p : points_) {
    x.push_back(short_number(p.x, 10));
    y.push_back(short_number(p.y));
  }
  return json::Object{{"x", std::move(x)}, {"y", std::move(y)}};
}

void MeanRows::add(double x, const std::vector<double>& values) {
  DELTATUNE_ASSERT(values.size() == columns_);
  if (rows_.empty() || rows_.back().count >= width_) rows_.push_back({x, 0, std::vector<double>(columns_)});
  Row& row = rows_.back();
  row.x = x;
  ++row.count;
  for (size_t i = 0; i < columns_; ++i) row.sums[i] += values[i];
  if (rows_.size() <= capacity_) return;
  std::vector<Row> merged;
  for (size_t i = 0; i < rows_.size(); i += 2) {
    Row sum = std::move(rows_[i]);
    if (i + 1 < rows_.size()) {
      sum.x = rows_[i + 1].x;
      sum.count += rows_[i + 1].count;
      for (size_t k = 0; k < columns_; ++k) sum.sums[k] += rows_[i + 1].sums[k];
    }
    merged.push_back(std::move(sum));
  }
  rows_ = std::move(merged);
  width_ *= 2;
}

json::Value MeanRows::to_json() const {
  json::Array x;
  std::vector<json::Array> columns(columns_);
  for (const Row& row : rows_) {
    x.push_back(short_number(row.x, 10));
    for (size_t i = 0; i < columns_; ++i)
      columns[i].push_back(short_number(row.sums[i] / static_cast<double>(row.count)));
  }
  json::Array y;
  for (json::Array& column : columns) y.emplace_back(std::move(column));
  return json::Object{{"x", std::move(x)}, {"y", std::move(y)}, {"steps_per_row", width_}};
}

}  // namespace deltatune
