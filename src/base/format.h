// format("{} of {}", a, b): fmt behind our name. Not for .cu files (fmt 9 does not compile there).
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <utility>

namespace deltatune {

/// std::format's syntax; format strings are checked at compile time.
template <class... A>
std::string format(fmt::format_string<A...> pattern, A&&... arguments) {
  return fmt::format(pattern, std::forward<A>(arguments)...);
}

/// 1536 -> "1.50 KiB"; exact below 1 KiB.
std::string format_bytes(uint64_t bytes);

/// 1234567 -> "1,234,567".
std::string format_count(int64_t count);

/// Seconds as "0.42s", "1m03s", "2h05m".
std::string format_duration(double seconds);

}  // namespace deltatune
