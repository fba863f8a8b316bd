// Gradient checks: the backward of an op against finite differences of its forward, both in double.
//
// The scalar is L = sum over all outputs of r . output with fixed random r. For probed elements x of every
// input the five-point difference
//     (8 (L(x + h) - L(x - h)) - (L(x + 2h) - L(x - 2h))) / (12 h)
// is compared with what backward gives for doutput = r. With h = 1e-3 and inputs of order 1 the truncation
// error h^4 L''''' / 30 is about 1e-13 L''''' and the rounding error 1.5 eps / h sum |r . output| about
// 3e-13 times that sum, so 1e-9 of the largest gradient plus 1e-11 of the sum has two digits to spare.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ops/parity.h"

namespace deltatune::gradcheck {

using parity::Array;

/// Numbers of tokens for ops without documents: one, two, around a block of 64 and two of them, and three
/// that are drawn.
inline std::vector<int64_t> edge_lengths() {
  std::vector<int64_t> lengths = {1, 2, 63, 64, 65, 128, 129};
  Rng rng(17);
  for (int i = 0; i < 3; ++i) lengths.push_back(static_cast<int64_t>(3 + rng.below(100)));
  return lengths;
}

struct Input {
  std::string name;
  Array value;             ///< f64
  bool parameter = false;  ///< backward adds to its gradient instead of writing it
};

struct Case {
  std::vector<Input> inputs;
  std::vector<Array> outputs;  ///< f64, shapes only
  /// Computes outputs from inputs.
  std::function<void(Stream&, const std::vector<Input>& inputs, std::vector<Array>& outputs)> forward;
  /// Computes the gradients of the inputs, in their order. `outputs`: those of forward.
  std::function<void(Stream&, const std::vector<Input>& inputs, const std::vector<Array>& outputs,
                     const std::vector<Array>& doutputs, std::vector<Array>& dinputs)>
      backward;
  double step = 1e-3;
  double relative = 1e-9;
  int64_t probes = 40;  ///< elements tried per input; all where it has fewer
};

/// Runs the check; failures name the input and element.
inline void check(Case c) {
  parity::Runner run;
  std::vector<Array> weights;
  for (size_t i = 0; i < c.outputs.size(); ++i)
    weights.push_back(parity::random(DType::f64, c.outputs[i].shape(), 900 + i));
  double magnitude = 0;
  const auto loss = [&] {
    std::vector<Array> outputs = c.outputs;
    run([&](Stream& stream) { c.forward(stream, c.inputs, outputs); });
    double sum = 0;
    magnitude = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto values = outputs[i].values();
      const auto r = weights[i].values();
      for (size_t j = 0; j < values.size(); ++j) {
        sum += values[j] * r[j];
        magnitude += std::abs(values[j] * r[j]);
      }
    }
    return sum;
  };
  std::vector<Array> outputs = c.outputs;
  run([&](Stream& stream) { c.forward(stream, c.inputs, outputs); });
  std::vector<Array> gradients, base;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const Shape shape = c.inputs[i].value.shape();
    base.push_back(parity::random(DType::f64, shape, 950 + i));
    gradients.push_back(c.inputs[i].parameter ? base.back() : Array(DType::f64, shape));
  }
  run([&](Stream& stream) { c.backward(stream, c.inputs, outputs, weights, gradients); });
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    EXPECT_TRUE(gradients[i].intact()) << c.inputs[i].name;
    std::vector<double> analytic = gradients[i].values();
    double largest = 0;
    for (size_t j = 0; j < analytic.size(); ++j) {
      if (c.inputs[i].parameter) analytic[j] -= base[i].values()[j];
      largest = std::max(largest, std::abs(analytic[j]));
    }
    Rng rng(20240613, i);
    const int64_t count = c.inputs[i].value.count();
    for (int64_t probe = 0; probe < std::min(count, c.probes); ++probe) {
      int64_t j = count <= c.probes ? probe : static_cast<int64_t>(rng.below(static_cast<uint64_t>(count)));
      if (count > c.probes && probe == 0) j = 0;
      if (count > c.probes && probe == 1) j = count - 1;
      double& x = c.inputs[i].value.view().as<double>()[j];
      const double at = x;
      const auto loss_at = [&](double offset) {
        x = at + offset * c.step;
        return loss();
      };
      const double numeric = (8 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2))) / (12 * c.step);
      x = at;
      const double tolerance = c.relative * std::max(largest, 1e-3) + 1e-11 * magnitude;
      EXPECT_NEAR(analytic[static_cast<size_t>(j)], numeric, tolerance)
          << c.inputs[i].name << "[" << j << "]";
    }
  }
}

}  // namespace deltatune::gradcheck
