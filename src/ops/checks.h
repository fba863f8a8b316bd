// Checks of op arguments, and the byte count of their cost. A wrong argument is a mistake of ours, never the
// user's: Error{internal} that names op, argument, what was expected and what came.
#pragma once

#include <initializer_list>
#include <string>

#include "tensor/tensor.h"

namespace deltatune::ops {

/// Throws Error{internal}: "rmsnorm_forward: w_D: expected f32 [64], found f32 [63]".
[[noreturn]] void fail_check(const char* op, const char* argument, const std::string& expected,
                             const std::string& found);

/// The checks of one op.
struct Check {
  const char* op;

  /// Must be there, with this dtype and shape.
  void input(const char* argument, const CTensor& x, DType dtype, const Shape& shape) const;
  /// As input, or an empty view (not wanted).
  void output(const char* argument, const CTensor& x, DType dtype, const Shape& shape) const;
  /// Must be there and have this rank.
  void rank(const char* argument, const CTensor& x, int rank) const;
  /// Must be f32, bf16 or f64.
  void storage(const char* argument, const CTensor& x) const;
  void that(bool condition, const char* argument, const char* expected) const {
    if (!condition) fail_check(op, argument, expected, "something else");
  }
};

/// Bytes of the tensors; empty views count nothing.
inline double bytes_of(std::initializer_list<CTensor> tensors) {
  double sum = 0;
  for (const CTensor& x : tensors) sum += static_cast<double>(x.bytes());
  return sum;
}

}  // namespace deltatune::ops
