// A count with its noun, for lines that people read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/format.h"

namespace deltatune {

/// counted(1, "step"): "1 step"; counted(12345, "step"): "12,345 steps"; counted(2, "retry", "retries").
/// Without `several` the noun takes an s.
inline std::string counted(int64_t count, std::string_view one, std::string_view several = {}) {
  const std::string number = format_count(count) + " ";
  if (count == 1) return number + std::string(one);
  return number + (several.empty() ? std::string(one) + "s" : std::string(several));
}

}  // namespace deltatune
