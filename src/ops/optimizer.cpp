// Checks and costs of the optimizer ops.
#include "ops/optimizer.h"

#include "ops/checks.h"
#include "ops/kernel_list.h"
#include "ops/moment_codes.h"
#include "ops/op.h"

namespace deltatune::ops {

void sum_squares(Stream& stream, Tensor sum_1, CTensor x_n) {
  const Check check{"sum_squares"};
  check.storage("x_n", x_n);
  check.input("sum_1", sum_1, DType::f64, {1});
  require_scratch(stream, Op::sum_squares, {.storage = x_n.dtype, .rows = x_n.count()});
  const OpScope scope(stream, Op::sum_squares,
                      {.bytes = bytes_of({sum_1, x_n}), .flops = 2 * static_cast<double>(x_n.count())}, x_n);
  submit(stream, [=, &stream] { stream.kernels().sum_squares(stream, sum_1, x_n); });
}

void grad_scale(Stream& stream, Tensor scalars_8, CTensor sum_1, float max_norm) {
  const Check check{"grad_scale"};
  check.input("scalars_8", scalars_8, DType::f32, {StepScalar::count});
  check.input("sum_1", sum_1, DType::f64, {1});
  const OpScope scope(stream, Op::grad_scale, {.bytes = bytes_of({scalars_8, sum_1}), .flops = 4}, scalars_8);
  submit(stream, [=, &stream] { stream.kernels().grad_scale(stream, scalars_8, sum_1, max_norm); });
}

void adamw(Stream& stream, AdamwTensors tensors, CTensor scalars_8, AdamwOptions options) {
  const Check check{"adamw"};
  check.rank("m_n", tensors.m_n, tensors.m_n.shape.rank);
  const Shape& shape = tensors.m_n.shape;
  const bool codes = tensors.m_n.dtype == DType::u8;
  const DType moments = codes || tensors.m_n.dtype == DType::bf16 ? tensors.m_n.dtype : DType::f32;
  if (codes) {
    check.input("m_unit_b", tensors.m_unit_b, DType::f32, {moment_blocks(shape.count())});
    check.input("v_unit_b", tensors.v_unit_b, DType::f32, {moment_blocks(shape.count())});
    check.that(tensors.first % moment_block == 0, "first", "a multiple of 128");
  }
  check.input("m_n", tensors.m_n, moments, shape);
  check.input("v_n", tensors.v_n, moments, shape);
  check.input("grad_n", tensors.grad_n, DType::f32, shape);
  check.output("master_n", tensors.master_n, DType::f32, shape);
  const bool own_master = tensors.master_n.empty();
  const bool narrow_param = tensors.param_n.dtype == DType::bf16;
  check.input("param_n", tensors.param_n, narrow_param ? DType::bf16 : DType::f32, shape);
  check.input("scalars_8", scalars_8, DType::f32, {StepScalar::count});
  const double count = static_cast<double>(shape.count());
  // Read and written: the moments and the master, be it apart or not; the copy of a master is only written.
  const double moved = bytes_of({tensors.param_n, tensors.grad_n}) +
                       (own_master ? bytes_of({tensors.param_n}) : 8 * count) +
                       2 * bytes_of({tensors.m_n, tensors.v_n, tensors.m_unit_b, tensors.v_unit_b});
  const OpScope scope(stream, Op::adamw, {.bytes = moved, .flops = 16 * count}, tensors.m_n);
  submit(stream, [=, &stream] { stream.kernels().adamw(stream, tensors, scalars_8, options); });
}

}  // namespace deltatune::ops
