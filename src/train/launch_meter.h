// LaunchMeter: how long a GPU stood still, or could only go as fast as the host launched, during a step.
//
// The step's parts (see StepGraphs) are marked in the stream at both ends. Between two parts the device has
// nothing to do until the host gives it more: the whole gap counts. A part that is replayed as a graph has no
// launches inside. A part that the host launches op by op is cut into stretches by more marks, before an op
// every `stretch` or so of the host's time. A stretch counts whole where, at its end, the device was less
// than `close_behind` behind the host: then launches set the pace. A host that was held up in the middle (it
// had to wait for its processor, say) sets a mark before it goes on; where the device had caught up by then,
// the time of the hold-up counts, less what the device still had to do when it last had a mark. What was
// given between that mark and the hold-up is not known apart, so the figure is up to a stretch too large
// there; hold-ups shorter than `hold_up` are seen only as launches that set the pace.
// Costs two marks a part and at most `most_marks` inside of them, a look at the clock an op (some 25 ns), and
// nothing on the CPU, where the host is the device. Nothing waits for the device before the step's results
// are there. Communication that the stream waits for lies inside of parts.
#pragma once

#include <functional>
#include <vector>

#include "ops/op_watch.h"
#include "tensor/device.h"

namespace deltatune {

class LaunchMeter final : private OpWatch {
 public:
  static constexpr double close_behind = 50e-6;  ///< seconds; a launch takes 2.5 to 5 us
  /// Seconds, and shares of the step before: a longer step needs no finer look.
  static constexpr double stretch = 200e-6, stretch_share = 1.0 / 128;
  static constexpr double hold_up = 200e-6, hold_up_share = 1.0 / 256;
  static constexpr size_t most_marks = 384;  ///< of a step

  /// `clock`: the host's, in seconds; tests give their own.
  explicit LaunchMeter(bool on, std::function<double()> clock = {});
  ~LaunchMeter();
  LaunchMeter(const LaunchMeter&) = delete;
  LaunchMeter& operator=(const LaunchMeter&) = delete;

  void begin_step(Stream& stream);
  /// A part that is begun anew without an end is forgotten.
  void begin_part(Stream& stream);
  /// Whether the ops that follow are launched, so that there can be marks between them: true from
  /// begin_part() on.
  void watch_ops(bool on);
  void end_part(Stream& stream, bool graph);
  /// Behind the work whose end the host will wait for; parts after it are not the step's.
  void mark_results(Stream& stream);
  /// The host has waited for the results.
  void end_step(Stream& stream);
  /// Of the last step that ended; below 0: not measured.
  double host_bound_seconds() const { return host_bound_; }

 private:
  /// A point of the work, and when the host was there.
  struct Mark {
    Moment at;
    double host = 0;
    double held_since = 0;  ///< the op before it, where that is long ago
    bool after_hold_up = false;
  };
  struct Part {
    Moment begin;
    Mark end;
    size_t first_mark = 0, marks = 0;  ///< of marks_
    double host_begin = 0;
    bool graph = false;
  };
  void before_op(Stream& stream) override;
  double part_seconds(Stream& stream, const Part& part, double begin, double host_to_device);

  bool on_;
  std::function<double()> clock_;
  bool counting_ = false;  ///< between begin_step and mark_results
  size_t parts_used_ = 0, marks_used_ = 0;
  std::vector<Part> parts_;  ///< of which parts_used_ are this step's; the others keep their events
  std::vector<Mark> marks_;  ///< likewise
  const Stream* watched_ = nullptr;
  double last_op_ = 0, last_mark_ = 0;  ///< the host's time, of this part
  double step_begin_ = 0, step_seconds_ = 0;
  Moment begin_, results_;
  bool results_marked_ = false;
  double host_bound_ = -1;
};

}  // namespace deltatune
