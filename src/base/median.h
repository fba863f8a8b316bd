// The middle of some figures.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace deltatune {

/// Of an even number of values the upper of the two in the middle; NaN without any. None may be NaN.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace deltatune
