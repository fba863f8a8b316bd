// Heartbeat: no verb is silent for long. Whatever writes a line for people says so here; where nothing has
// come for a while, a thread says what is going on and for how long.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace deltatune {

/// What the program is doing, for such a line: "loading the weights", "step 12 of 983".
void set_activity(std::string_view what);
/// A line for people has been written just now, or a live line drawn. Called by the log and the console.
void note_output();
/// Seconds since then.
double silence_s();

class Heartbeat {
 public:
  /// Says "WHAT: still at it, 12s so far" through the log, at level info, after `limit_s` of silence. WHAT is
  /// the activity, `verb` until there is one, and the time is its own; in its first second the line ends in
  /// "12s since the start", of this object. The log's threshold holds.
  explicit Heartbeat(std::string_view verb, double limit_s = 4.5);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatune
