// Ctrl-C, SIGTERM and SIGUSR1 as a supervisor of ranks takes them: noted, and passed on by whoever waits for
// the ranks.
#pragma once

#include <signal.h>

#include <array>

namespace deltatune::cli {

/// Handlers while it exists. One at a time.
class StopForwarding {
 public:
  StopForwarding();
  ~StopForwarding();
  StopForwarding(const StopForwarding&) = delete;
  StopForwarding& operator=(const StopForwarding&) = delete;

  /// The first signal; 0: none.
  static int asked();
  /// How many Ctrl-C.
  static int interrupts();

 private:
  static constexpr std::array<int, 3> signals = {SIGINT, SIGTERM, SIGUSR1};
  std::array<struct sigaction, 3> previous_{};
};

}  // namespace deltatune::cli
