// Random values for timing: operands of matmul tuning and of `bench`. Zeros are never used for that: they
// draw less power and run faster than any real data.
//
// A block of about a million values is made once per distribution and written again and again; its length is
// prime, so that rows of a matrix do not repeat. Deterministic.
#pragma once

#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include "tensor/device.h"

namespace deltatune {

class RandomFill {
 public:
  /// Normal values around 0. Floating dtypes only. Returns when the values are there.
  void normal(Stream&, Tensor, double deviation = 1);
  /// Uniform values in [low, high); of an i32 tensor integers.
  void uniform(Stream&, Tensor, double low, double high);

 private:
  enum class Kind { normal, uniform };
  const std::vector<std::byte>& block(DType dtype, Kind kind, double low, double high);
  void write(Stream&, Tensor, const std::vector<std::byte>& block);
  std::map<std::tuple<DType, Kind, double, double>, std::vector<std::byte>> blocks_;
};

}  // namespace deltatune
