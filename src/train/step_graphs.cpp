// Warm-up, capture, replay.
#include "train/step_graphs.h"

#include <string>

#include "base/error.h"
#include "base/log.h"

namespace deltatune {

void StepGraphs::check(const Stream& stream) {
  if (stream.can_capture()) return;
  if (mode_ == GraphMode::always && !stream.device().is_null()) {
    throw Error(ErrorKind::usage, std::string("device ") + stream.device().name() + " has no CUDA graphs",
                "cuda_graph: true", "use cuda_graph: auto");
  }
  mode_ = GraphMode::never;
}

bool StepGraphs::capture(Stream& stream, State& part, const std::function<void()>& ops) {
  try {
    stream.begin_capture();
    ops();
    part.graph = stream.end_capture();
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
    return ops();
  }
  if (!part.graph.native && !capture(stream, part, ops)) return ops();
  stream.launch(part.graph);
}

}  // namespace deltatune
