// Tuning of matrix products before the first step: which algorithm of the library serves each shape.
//
// The calls of a step are recorded on real memory without being run (MatmulRecorder), and given to
// Device::prepare once, before weights are loaded and data arrive: tuning may overwrite every operand. After
// it the device uses for these shapes what it chose, run after run (the choice is stored under `folder`), and
// for any other shape the library's first suggestion.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/kernels.h"

namespace deltatune {

/// One matmul of a step.
struct MatmulCall {
  Tensor c;
  CTensor a, b;
  MatmulSpec spec;
};

/// The request, and the outcome.
struct MatmulTuning {
  std::vector<MatmulCall> calls;              ///< may repeat a shape
  bool time = true;                           ///< false: the library's first suggestion, nothing is measured
  std::string folder;                         ///< of the stored choices; empty: nothing is stored
  std::function<void(Stream&, Tensor)> fill;  ///< queues random values for an operand

  // Outcome.
  int64_t shapes = 0;                 ///< distinct ones
  int64_t stored = 0;                 ///< of which the choice was in the file
  double first_us = 0;                ///< sum over timed shapes: the first suggestion
  double chosen_us = 0;               ///< and the one chosen
  int64_t timed = 0;                  ///< shapes that were timed
  double seconds = 0;                 ///< the whole preparation
  std::vector<std::string> plain;     ///< shapes that the library refuses: the plain kernel serves them
  std::vector<std::string> warnings;  ///< about the file
};

/// A stream that notes matmuls and runs nothing: give it to the code of a step whose tensors are real.
class MatmulRecorder final : public Stream {
 public:
  MatmulRecorder(Device& device, std::vector<MatmulCall>& calls);
  void record(Event& event) override { event.native = nullptr; }
  void wait(const Event&) override {}
  void sync() override {}
  void upload(Tensor, const void*) override {}
  void download(void*, CTensor) override {}

 private:
  static const Kernels& table();
  std::vector<MatmulCall>& calls_;
};

}  // namespace deltatune
