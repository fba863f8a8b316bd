// Time stamps.
#include "base/clock.h"

#include <ctime>

#include "base/format.h"

namespace deltatune {

std::string timestamp_utc() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return format("{}.{:03}Z", text, now.tv_nsec / 1000000);
}

std::string timestamp_local() {
  const time_t now = std::time(nullptr);
  tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

}  // namespace deltatune
