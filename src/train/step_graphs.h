// StepGraphs: the stretches of a step that queue the same work on the same memory every time, as CUDA graphs.
//
// A stretch runs op by op the first time (libraries make their plans then), is captured the second time and
// replayed from then on. A replay queues exactly what the ops would, so the bits are the same. The host pays
// one launch for thousands. What is not the same from row to row - the head's number of rows - stays outside.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "tensor/device.h"

namespace deltatune {

/// cuda_graph: where it is possible; required; not at all.
enum class GraphMode { automatic, always, never };

class StepGraphs {
 public:
  enum Part { begin_window, forward, backward_first, backward, measure, update, part_count };
  /// "forward", ...; a literal.
  static const char* name_of(Part part);

  explicit StepGraphs(GraphMode mode) : mode_(mode) {}

  /// Throws Error{usage} where graphs are required and the stream knows none.
  void check(const Stream&);
  /// Queues `ops`, directly or as a graph. `ops` may run more than once for one call: what is captured is not
  /// run. A stretch that cannot be captured ends the use of graphs with one line in the log (automatic), or
  /// throws (always).
  void run(Stream&, Part, const std::function<void()>& ops);
  /// Captures anew, when they run next, the parts that were captured without a trace (base/trace.h): only
  /// then is it known which of a graph's work is whose. The device must be done with them.
  void drop_untraced();
  /// Inside of `ops`: they are captured, not run.
  bool capturing() const { return capturing_; }
  /// Nodes of the part's graph; 0: not captured.
  int64_t nodes(Part part) const { return parts_[part].graph.nodes; }

 private:
  struct State {
    bool warm = false;
    bool traced = false;  ///< captured with a trace
    Graph graph;
  };
  bool capture(Stream&, State&, const std::function<void()>& ops);

  GraphMode mode_;
  bool capturing_ = false;
  std::array<State, part_count> parts_;
};

}  // namespace deltatune
