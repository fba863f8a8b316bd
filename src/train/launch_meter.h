// LaunchMeter: how long a GPU stood still, or could only go as fast as the host launched, during a step.
//
// The step's parts (see StepGraphs) are marked in the stream at both ends. Between two parts the device has
// nothing to do until the host gives it more: the whole gap counts. A part that the host launches op by op
// counts whole where, at its end, the device was less than `close_behind` behind the host: then launches set
// the pace. A part that is replayed as a graph has no launches inside. Costs two marks a part, and nothing on
// the CPU, where the host is the device. Communication that the stream waits for lies inside of parts.
#pragma once

#include <functional>
#include <vector>

#include "tensor/device.h"

namespace deltatune {

class LaunchMeter {
 public:
  static constexpr double close_behind = 50e-6;  ///< seconds; a launch takes 2.5 to 5 us

  /// `clock`: the host's, in seconds; tests give their own.
  explicit LaunchMeter(bool on, std::function<double()> clock = {});

  void begin_step(Stream& stream);
  /// A part that is begun anew without an end is forgotten.
  void begin_part(Stream& stream);
  void end_part(Stream& stream, bool graph);
  /// Behind the work whose end the host will wait for; parts after it are not the step's.
  void mark_results(Stream& stream);
  /// The host has waited for the results.
  void end_step(Stream& stream);
  /// Of the last step that ended; below 0: not measured.
  double host_bound_seconds() const { return host_bound_; }

 private:
  struct Part {
    Moment begin, end;
    double host_end = 0;
    bool graph = false;
  };
  bool on_;
  std::function<double()> clock_;
  bool counting_ = false;  ///< between begin_step and mark_results
  size_t parts_used_ = 0;
  std::vector<Part> parts_;  ///< of which parts_used_ are this step's; the others keep their events
  Moment begin_, results_;
  bool results_marked_ = false;
  double host_bound_ = -1;
};

}  // namespace deltatune
