// Ctrl-C, SIGTERM and SIGUSR1: finish the step, save, leave with a code that says so. A second Ctrl-C ends
// the program at once.
#pragma once

namespace deltatune {

/// Installs the handlers while it exists. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// 0: none; 130 after SIGINT; 143 after SIGTERM or SIGUSR1 (Slurm's pre-emption).
  static int exit_code();
};

}  // namespace deltatune
