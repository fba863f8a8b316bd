// A set of named tensors that can be read one at a time: what a checkpoint folder offers to the model and
// what the parameter store offers to the checkpoint writer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace deltatune {

/// Name, dtype and shape of one stored tensor. Shapes may have any rank (vision towers have rank 5).
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

class ParamSource {
 public:
  virtual ~ParamSource() = default;
  /// nullptr when there is no tensor of that name.
  virtual const TensorInfo* find(std::string_view name) const = 0;
  /// Writes the tensor's bytes (row-major, little-endian, in its own dtype) to `to`, which has room for
  /// exactly count * size_of(dtype). Throws Error{model} when the bytes cannot be read.
  virtual void read(std::string_view name, std::byte* to) const = 0;
  /// The same for bytes [begin, begin + bytes) of the tensor. May be called from several threads.
  virtual void read_part(std::string_view name, size_t begin, size_t bytes, std::byte* to) const = 0;
  /// Where a reader of many parts best cuts a tensor: the first byte of it behind `begin` that starts a new
  /// stretch of the file, at most `most` bytes further on.
  virtual size_t next_cut(std::string_view name, size_t begin, size_t most) const {
    static_cast<void>(name);
    return begin + most;
  }
};

}  // namespace deltatune
