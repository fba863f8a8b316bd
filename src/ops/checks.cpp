// Messages of failed argument checks.
#include "ops/checks.h"

namespace deltatune::ops {
namespace {

std::string describe(DType dtype, const Shape& shape) {
  return std::string(name_of(dtype)) + " " + to_string(shape);
}
std::string describe(const CTensor& x) {
  return x.empty() ? "an empty view" : describe(x.dtype, x.shape);
}

}  // namespace

void fail_check(const char* op, const char* argument, const std::string& expected, const std::string& found) {
  throw Error(ErrorKind::internal,
              std::string(op) + ": " + argument + ": expected " + expected + ", found " + found);
}

void Check::input(const char* argument, const CTensor& x, DType dtype, const Shape& shape) const {
  if (x.empty() || x.dtype != dtype || x.shape != shape)
    fail_check(op, argument, describe(dtype, shape), describe(x));
}

void Check::output(const char* argument, const CTensor& x, DType dtype, const Shape& shape) const {
  if (!x.empty()) input(argument, x, dtype, shape);
}

void Check::rank(const char* argument, const CTensor& x, int rank) const {
  if (x.empty() || x.shape.rank != rank)
    fail_check(op, argument, "rank " + std::to_string(rank), describe(x));
}

void Check::storage(const char* argument, const CTensor& x) const {
  if (x.empty() || (x.dtype != DType::f32 && x.dtype != DType::bf16 && x.dtype != DType::f64))
    fail_check(op, argument, "f32, bf16 or f64", describe(x));
}

}  // namespace deltatune::ops
