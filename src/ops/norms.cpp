// Checks and costs of the norms.
#include "ops/norms.h"

#include "ops/checks.h"
#include "ops/kernel_list.h"
#include "ops/op.h"

namespace deltatune::ops {
namespace {

void check_forward(const Check& check, CTensor y_TD, CTensor rstd_T, CTensor x_TD, CTensor w_D) {
  check.storage("x_TD", x_TD);
  check.rank("x_TD", x_TD, 2);
  check.output("y_TD", y_TD, x_TD.dtype, x_TD.shape);
  check.output("rstd_T", rstd_T, compute_dtype(x_TD.dtype), {x_TD.dim(0)});
  check.input("w_D", w_D, x_TD.dtype, {x_TD.dim(1)});
}

void check_backward(const Check& check, CTensor dx_TD, CTensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor w_D,
                    CTensor rstd_T) {
  check.storage("x_TD", x_TD);
  check.rank("x_TD", x_TD, 2);
  check.output("dx_TD", dx_TD, x_TD.dtype, x_TD.shape);
  check.output("dw_D", dw_D, compute_dtype(x_TD.dtype), {x_TD.dim(1)});
  check.input("dy_TD", dy_TD, x_TD.dtype, x_TD.shape);
  check.input("w_D", w_D, x_TD.dtype, {x_TD.dim(1)});
  check.input("rstd_T", rstd_T, compute_dtype(x_TD.dtype), {x_TD.dim(0)});
}

OpShape op_shape(CTensor x_TD) {
  return {.storage = x_TD.dtype, .rows = x_TD.dim(0), .columns = x_TD.dim(1)};
}

double elements(const CTensor& x) {
  return static_cast<double>(x.count());
}

}  // namespace

void rmsnorm_forward(Stream& stream, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor w_D, float eps) {
  check_forward({"rmsnorm_forward"}, y_TD, rstd_T, x_TD, w_D);
  const OpScope scope(stream, Op::rmsnorm_forward,
                      {.bytes = bytes_of({y_TD, rstd_T, x_TD, w_D}), .flops = 5 * elements(x_TD)}, x_TD);
  submit(stream, [=, &stream] { stream.kernels().rmsnorm_forward(stream, y_TD, rstd_T, x_TD, w_D, eps); });
}

void rmsnorm_backward(Stream& stream, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor w_D,
                      CTensor rstd_T) {
  check_backward({"rmsnorm_backward"}, dx_TD, dw_D, dy_TD, x_TD, w_D, rstd_T);
  if (!dw_D.empty()) require_scratch(stream, Op::rmsnorm_backward, op_shape(x_TD));
  const OpScope scope(
      stream, Op::rmsnorm_backward,
      {.bytes = bytes_of({dx_TD, dw_D, dy_TD, x_TD, w_D, rstd_T}), .flops = 10 * elements(x_TD)}, x_TD);
  submit(stream,
         [=, &stream] { stream.kernels().rmsnorm_backward(stream, dx_TD, dw_D, dy_TD, x_TD, w_D, rstd_T); });
}

void add_rmsnorm_forward(Stream& stream, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD,
                         CTensor delta_TD, CTensor w_D, float eps) {
  const Check check{"add_rmsnorm_forward"};
  check_forward(check, y_TD, rstd_T, x_TD, w_D);
  check.input("sum_TD", sum_TD, x_TD.dtype, x_TD.shape);
  check.input("delta_TD", delta_TD, x_TD.dtype, x_TD.shape);
  const OpScope scope(
      stream, Op::add_rmsnorm_forward,
      {.bytes = bytes_of({sum_TD, y_TD, rstd_T, x_TD, delta_TD, w_D}), .flops = 6 * elements(x_TD)}, x_TD);
  submit(stream, [=, &stream] {
    stream.kernels().add_rmsnorm_forward(stream, sum_TD, y_TD, rstd_T, x_TD, delta_TD, w_D, eps);
  });
}

void add_rmsnorm_backward(Stream& stream, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD,
                          CTensor sum_TD, CTensor w_D, CTensor rstd_T) {
  const Check check{"add_rmsnorm_backward"};
  check_backward(check, dx_TD, dw_D, dy_TD, sum_TD, w_D, rstd_T);
  check.input("dsum_TD", dsum_TD, sum_TD.dtype, sum_TD.shape);
  if (!dw_D.empty()) require_scratch(stream, Op::add_rmsnorm_backward, op_shape(sum_TD));
  const OpScope scope(
      stream, Op::add_rmsnorm_backward,
      {.bytes = bytes_of({dx_TD, dw_D, dy_TD, dsum_TD, sum_TD, w_D, rstd_T}), .flops = 11 * elements(sum_TD)},
      sum_TD);
  submit(stream, [=, &stream] {
    stream.kernels().add_rmsnorm_backward(stream, dx_TD, dw_D, dy_TD, dsum_TD, sum_TD, w_D, rstd_T);
  });
}

}  // namespace deltatune::ops
