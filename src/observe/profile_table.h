// A profile as tables for people: the host's side and the device's side, what is idle and why, and the ranks
// side by side. Columns are those that torch.profiler's users know, and the machine's limits beside them.
#pragma once

#include <string>
#include <vector>

#include "observe/profile.h"

namespace deltatune {

struct ProfileTable {
  std::string group = "op";    ///< op | op_shape | kernel | phase
  std::string sort = "total";  ///< a name of profile_columns()
  int64_t top = 30;            ///< rows; 0: all
};

/// Columns by which rows can be sorted: numbers descending, texts ascending.
const std::vector<std::string>& profile_columns();

/// All of it; ends with a line end. `sort` and `group` are known names.
std::string profile_text(const Profile& profile, const ProfileTable& options);

/// Two and more ranks: for each op the least, mean and most device time over the ranks, and which rank is the
/// slowest and in what. Profiles in the order of ranks.
std::string ranks_text(const std::vector<Profile>& ranks, int64_t top);

}  // namespace deltatune
