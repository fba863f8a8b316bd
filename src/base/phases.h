// What the time since the start of the process went into, phase by phase.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace deltatune {

class Phases {
 public:
  /// The first phase began with the process; where the system does not say when that was, now.
  Phases();
  /// Ends a phase; the next one begins. A name that was there before gets the time added.
  void end(const std::string& name);
  /// Takes `seconds` of the last phase out as one of its own.
  void split(const std::string& name, double seconds);
  const std::vector<std::pair<std::string, double>>& all() const { return phases_; }
  double total() const;
  /// "12.3 s: device 1.2, data 8.0, ...", seconds.
  std::string text() const;

 private:
  double last_;  ///< seconds since the machine's boot
  std::vector<std::pair<std::string, double>> phases_;
};

}  // namespace deltatune
