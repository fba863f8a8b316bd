// OpWatch: somebody who wants to know when the host comes to an op, without a trace. What it may do there has
// to cost nanoseconds most of the time: every op passes by. Not here: what is made of it
// (train/launch_meter.h).
#pragma once

#include "tensor/device.h"

namespace deltatune {

class OpWatch {
 public:
  /// The host is about to give an op to `stream`.
  virtual void before_op(Stream& stream) = 0;

 protected:
  ~OpWatch() = default;
};

/// Who watches the ops of this thread; nullptr: nobody.
inline constinit thread_local OpWatch* current_op_watch = nullptr;

}  // namespace deltatune
