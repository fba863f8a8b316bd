// Warm-up, capture, replay.
#include "train/step_graphs.h"

#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/trace.h"

namespace deltatune {

namespace {

// While it exists, `flag` is true and ops are traced as what a graph holds.
class NotedCapture {
 public:
  explicit NotedCapture(bool& flag) : flag_(flag), trace_(current_trace) {
    flag_ = true;
    if (trace_) trace_->capturing = true;
  }
  ~NotedCapture() {
    flag_ = false;
    if (trace_) trace_->capturing = false;
  }
  NotedCapture(const NotedCapture&) = delete;
  NotedCapture& operator=(const NotedCapture&) = delete;

 private:
  bool& flag_;
  TraceBuffer* trace_;
};

}  // namespace

const char* StepGraphs::name_of(Part part) {
  static constexpr std::array<const char*, part_count> names = {"begin_window", "forward", "backward_first",
                                                                "backward",     "measure", "update"};
  return names[part];
}

void StepGraphs::drop_untraced() {
  for (State& part : parts_) {
    if (!part.traced) part.graph = {};
  }
}

void StepGraphs::check(const Stream& stream) {
  if (stream.can_capture()) return;
  if (mode_ == GraphMode::always && !stream.device().is_null()) {
    throw Error(ErrorKind::usage, std::string("device ") + stream.device().name() + " has no CUDA graphs",
                "cuda_graph: true", "use cuda_graph: auto");
  }
  mode_ = GraphMode::never;
}

bool StepGraphs::capture(Stream& stream, State& part, const std::function<void()>& ops) {
  const TraceSpan span("capture of a graph");
  try {
    const NotedCapture noted(capturing_);
    stream.begin_capture();
    ops();
    part.graph = stream.end_capture();
    part.traced = current_trace != nullptr;
    return true;
  } catch (const Error& error) {
    stream.abandon_capture();
    if (mode_ == GraphMode::always) {
      throw Error(error.kind(), std::string("the step cannot be captured as a CUDA graph: ") + error.what(),
                  "cuda_graph: true", "use cuda_graph: auto, or false");
    }
    log::info("cuda_graph: the step runs op by op, it cannot be captured: {}", error.what());
    mode_ = GraphMode::never;
    return false;
  }
}

void StepGraphs::run(Stream& stream, Part which, const std::function<void()>& ops) {
  State& part = parts_[which];
  if (mode_ == GraphMode::never || !part.warm) {
    part.warm = true;
    const TraceSpan span(name_of(which));
    return ops();
  }
  if (!part.graph.native && !capture(stream, part, ops)) return ops();
  const TraceSpan span(name_of(which), TraceKind::launch, stream.name());
  stream.launch(part.graph);
}

}  // namespace deltatune
