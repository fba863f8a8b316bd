// Time: a monotonic stopwatch and UTC stamps.
#pragma once

#include <chrono>
#include <string>

namespace deltatune {

/// Seconds since construction or the last restart(), monotonic.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double restart() {
    const double elapsed = seconds();
    start_ = Clock::now();
    return elapsed;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Now, UTC: "2026-11-30T10:22:07.311Z".
std::string timestamp_utc();
/// Now, local time: "2026-11-30 10:22:07", for the console.
std::string timestamp_local();

}  // namespace deltatune
