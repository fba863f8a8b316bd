// Linux: field 22 of /proc/self/stat is the start of the process in ticks since boot.
#include "base/phases.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <sstream>

#include "base/format.h"

namespace deltatune {
namespace {

double seconds_since_boot() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double process_start() {
  const double now = seconds_since_boot();
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold spaces
  if (name_end == std::string::npos) return now;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  if (!(fields >> ticks)) return now;
  const double start = ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return start > 0 && start <= now ? start : now;
}

}  // namespace

Phases::Phases() : last_(process_start()) {}

void Phases::end(const std::string& name) {
  const double now = seconds_since_boot();
  const double seconds = now - last_;
  last_ = now;
  for (auto& [known, sum] : phases_) {
    if (known != name) continue;
    sum += seconds;
    return;
  }
  phases_.emplace_back(name, seconds);
}

void Phases::split(const std::string& name, double seconds) {
  if (phases_.empty() || seconds <= 0) return;
  phases_.back().second -= seconds;
  phases_.insert(phases_.end() - 1, {name, seconds});
}

double Phases::total() const {
  double sum = 0;
  for (const auto& [name, seconds] : phases_) sum += seconds;
  return sum;
}

std::string Phases::text() const {
  std::string out = format("{:.1f} s:", total());
  for (size_t i = 0; i < phases_.size(); ++i)
    out += format("{} {} {:.1f}", i ? "," : "", phases_[i].first, phases_[i].second);
  return out;
}

}  // namespace deltatune
