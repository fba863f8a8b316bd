// Progress on stderr: one live line on a terminal, plain lines elsewhere.
//
// Live: at most 10 updates a second, as wide as the terminal, wiped before a log line and drawn again after
// it. Plain: one line per logged step, fixed columns, no colour, no carriage return. Only rank 0 has a
// Console. stdout is never touched.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "observe/metrics.h"

namespace deltatune {

enum class ProgressStyle { bar, plain, json, none };

/// What the console knows about the terminal; terminal_of_stderr() fills it, tests make their own.
struct Terminal {
  bool tty = false;
  bool colour = false;
  bool unicode = false;
  int columns = 80;
};

/// isatty, TERM, NO_COLOR, CLICOLOR_FORCE, COLUMNS, LC_ALL, LC_CTYPE and LANG of this process.
Terminal terminal_of_stderr();

/// The style for a value of the option `progress` (auto, bar, plain, json, none).
ProgressStyle progress_style(std::string_view option, const Terminal& terminal);

/// "step 120/983 =====>.... 12%  loss 1.1834 -  31.1k tok/s  mfu 60%  mem 71/139 GiB  eta 1h01m  gpu 99%
/// roofline 71%" (with lines and arrows where the terminal shows Unicode), at most terminal.columns - 1 wide:
/// the bar shrinks first, then fields go from the right. Waits, host and fill are there where they cost.
/// `previous_loss` (NaN: none) gives the arrow.
std::string live_line(const StepLine& line, const Terminal& terminal, double previous_loss);

/// "2026-11-30 10:22:07 step    120/983  loss 1.1834  gnorm 0.61  lr 9.70e-06  tok/s 31134 (28249
/// supervised, 31834 slots)  ..." without newline.
std::string plain_line(const StepLine& line, std::string_view stamp);

class Console {
 public:
  /// `descriptor` is where to write, 2 for stderr. In style bar the console listens to the log until it is
  /// destroyed; there must be only one.
  Console(ProgressStyle style, const Terminal& terminal, int descriptor = 2);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Every step. Plain style writes it when `logged` or after 4 s without a line, json when `logged`.
  void step(const StepLine& line, bool logged);
  /// Work before or between steps: "packing 1200/4000". total 0: unknown. Plain: the first call of a name,
  /// then at most one line each 5 seconds, and the end.
  void phase(std::string_view name, int64_t done, int64_t total);
  /// Leaves the last live line standing and ends it; called by the destructor too.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatune
