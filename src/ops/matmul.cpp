// Checks and cost of matmul.
#include "ops/matmul.h"

#include "ops/checks.h"
#include "ops/kernel_list.h"
#include "ops/op.h"

namespace deltatune::ops {
namespace {

TraceShape product_shape(CTensor c, int64_t depth, MatmulSpec spec) {
  static constexpr const char* layouts[] = {"nt", "nn", "tn"};
  TraceShape out;
  out.layout = layouts[static_cast<int>(spec.layout)];
  out.dtype = name_of(c.dtype);
  out.adds = spec.accumulate;
  out.rank = 3;
  out.d[0] = c.dim(0);
  out.d[1] = c.dim(1);
  out.d[2] = depth;
  return out;
}

}  // namespace

void matmul(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  const Check check{"matmul"};
  check.storage("a", a);
  check.rank("a", a, 2);
  check.rank("b", b, 2);
  check.rank("c", c, 2);
  const int64_t rows = c.dim(0);
  const int64_t columns = c.dim(1);
  const bool a_transposed = spec.layout == MatmulLayout::tn;
  const int64_t depth = a.dim(a_transposed ? 0 : 1);
  check.input("a", a, a.dtype, a_transposed ? Shape{depth, rows} : Shape{rows, depth});
  check.input("b", b, a.dtype,
              spec.layout == MatmulLayout::nt ? Shape{columns, depth} : Shape{depth, columns});
  check.that(c.dtype == a.dtype || c.dtype == compute_dtype(a.dtype), "c",
             "the dtype of a or its compute dtype");
  require_scratch(stream, Op::matmul, {.storage = a.dtype, .rows = rows, .columns = columns});
  const double products =
      static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
  const double c_passes = spec.accumulate ? 2 : 1;
  const OpScope scope(
      stream, Op::matmul,
      {.bytes = bytes_of({a, b}) + c_passes * static_cast<double>(c.bytes()), .flops = 2 * products}, c);
  if (TraceEvent* event = scope.event()) event->shape = product_shape(c, depth, spec);
  submit(stream, [=, &stream] { stream.kernels().matmul(stream, c, a, b, spec); });
}

}  // namespace deltatune::ops
