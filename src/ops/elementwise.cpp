// Checks and costs of the elementwise ops.
#include "ops/elementwise.h"

#include "ops/checks.h"
#include "ops/op.h"

namespace deltatune::ops {
namespace {

void check_swiglu(const Check& check, CTensor gate_up_T2F, CTensor y_TF) {
  check.storage("gate_up_T2F", gate_up_T2F);
  check.rank("gate_up_T2F", gate_up_T2F, 2);
  check.that(gate_up_T2F.dim(1) % 2 == 0, "gate_up_T2F", "an even number of columns");
  check.input("y_TF", y_TF, gate_up_T2F.dtype, {gate_up_T2F.dim(0), gate_up_T2F.dim(1) / 2});
}

double elements(const CTensor& x) {
  return static_cast<double>(x.count());
}

}  // namespace

void swiglu_forward(Stream& stream, Tensor y_TF, CTensor gate_up_T2F) {
  check_swiglu({"swiglu_forward"}, gate_up_T2F, y_TF);
  const OpScope scope(stream, Op::swiglu_forward,
                      {.bytes = bytes_of({y_TF, gate_up_T2F}), .flops = 5 * elements(y_TF)}, y_TF);
  submit(stream, [=, &stream] { stream.kernels().swiglu_forward(stream, y_TF, gate_up_T2F); });
}

void swiglu_backward(Stream& stream, Tensor dgate_up_T2F, CTensor dy_TF, CTensor gate_up_T2F) {
  const Check check{"swiglu_backward"};
  check_swiglu(check, gate_up_T2F, dy_TF);
  check.input("dgate_up_T2F", dgate_up_T2F, gate_up_T2F.dtype, gate_up_T2F.shape);
  const OpScope scope(stream, Op::swiglu_backward,
                      {.bytes = bytes_of({dgate_up_T2F, dy_TF, gate_up_T2F}), .flops = 11 * elements(dy_TF)},
                      dgate_up_T2F);
  submit(stream,
         [=, &stream] { stream.kernels().swiglu_backward(stream, dgate_up_T2F, dy_TF, gate_up_T2F); });
}

void fill(Stream& stream, Tensor y, double value) {
  const Check check{"fill"};
  check.rank("y", y, y.shape.rank);
  const OpScope scope(stream, Op::fill, {.bytes = bytes_of({y})}, y);
  submit(stream, [=, &stream] { stream.kernels().fill(stream, y, value); });
}

void fill_normal(Stream& stream, Tensor y, double deviation, NormalStream which) {
  const Check check{"fill_normal"};
  check.storage("y", y);
  const OpScope scope(stream, Op::fill_normal, {.bytes = bytes_of({y}), .flops = 60 * elements(y)}, y);
  submit(stream, [=, &stream] { stream.kernels().fill_normal(stream, y, deviation, which); });
}

void cast(Stream& stream, Tensor y, CTensor x) {
  const Check check{"cast"};
  for (const CTensor& side : {CTensor(y), x}) {
    if (side.dtype != DType::f16) check.storage("y and x", side);
  }
  check.input("x", x, x.dtype, y.shape);
  check.input("y", y, y.dtype, x.shape);
  const OpScope scope(stream, Op::cast, {.bytes = bytes_of({y, x})}, y);
  submit(stream, [=, &stream] { stream.kernels().cast(stream, y, x); });
}

void add(Stream& stream, Tensor y, CTensor x) {
  const Check check{"add"};
  check.storage("y", y);
  check.storage("x", x);
  check.input("x", x, x.dtype, y.shape);
  const OpScope scope(stream, Op::add, {.bytes = bytes_of({y, y, x}), .flops = elements(y)}, y);
  submit(stream, [=, &stream] { stream.kernels().add(stream, y, x); });
}

}  // namespace deltatune::ops
