// Checks and costs of embedding, gather and scatter.
#include "ops/embedding.h"

#include <algorithm>

#include "ops/checks.h"
#include "ops/kernel_list.h"
#include "ops/op.h"

namespace deltatune::ops {
namespace {

double bytes(const CTensor& x) {
  return static_cast<double>(x.bytes());
}

}  // namespace

void embedding_forward(Stream& stream, Tensor y_TD, CTensor tokens_T, CTensor weight_VD) {
  const Check check{"embedding_forward"};
  check.rank("weight_VD", weight_VD, 2);
  check.rank("y_TD", y_TD, 2);
  const int64_t tokens = y_TD.dim(0);
  check.input("y_TD", y_TD, weight_VD.dtype, {tokens, weight_VD.dim(1)});
  check.input("tokens_T", tokens_T, DType::i32, {tokens});
  // The rows read, not the table.
  const OpScope scope(stream, Op::embedding_forward, {.bytes = 2 * bytes(y_TD) + bytes(tokens_T)}, y_TD);
  submit(stream, [=, &stream] { stream.kernels().embedding_forward(stream, y_TD, tokens_T, weight_VD); });
}

void embedding_backward(Stream& stream, Tensor dweight_VD, CTensor dy_TD, CTensor tokens_T, CTensor order_T) {
  const Check check{"embedding_backward"};
  check.storage("dy_TD", dy_TD);
  check.rank("dy_TD", dy_TD, 2);
  check.rank("dweight_VD", dweight_VD, 2);
  const int64_t tokens = dy_TD.dim(0);
  check.input("dweight_VD", dweight_VD, compute_dtype(dy_TD.dtype), {dweight_VD.dim(0), dy_TD.dim(1)});
  check.input("tokens_T", tokens_T, DType::i32, {tokens});
  check.input("order_T", order_T, DType::i32, {tokens});
  require_scratch(stream, Op::embedding_backward,
                  {.storage = dy_TD.dtype, .rows = tokens, .columns = dy_TD.dim(1)});
  const double elements = static_cast<double>(dy_TD.count());
  const double gradient = elements * static_cast<double>(size_of(dweight_VD.dtype));
  const OpScope scope(
      stream, Op::embedding_backward,
      {.bytes = bytes(dy_TD) + 2 * gradient + bytes(tokens_T) + bytes(order_T), .flops = elements},
      dweight_VD);
  submit(stream,
         [=, &stream] { stream.kernels().embedding_backward(stream, dweight_VD, dy_TD, tokens_T, order_T); });
}

void embedding_part_forward(Stream& stream, Tensor y_RTD, CTensor ids_R2T, CTensor part_N, int64_t first) {
  const Check check{"embedding_part_forward"};
  check.rank("y_RTD", y_RTD, 3);
  check.input("y_RTD", y_RTD, part_N.dtype, y_RTD.shape);
  check.input("ids_R2T", ids_R2T, DType::i32, {y_RTD.dim(0), 2, y_RTD.dim(1)});
  check.rank("part_N", part_N, 1);
  check.that(first >= 0, "first", "not below 0");
  // On average a part holds as much of what is looked up as every other one.
  const double read = bytes(y_RTD) / static_cast<double>(std::max<int64_t>(1, y_RTD.dim(0)));
  const OpScope scope(stream, Op::embedding_part_forward, {.bytes = bytes(y_RTD) + read + bytes(ids_R2T) / 2},
                      y_RTD);
  submit(stream,
         [=, &stream] { stream.kernels().embedding_part_forward(stream, y_RTD, ids_R2T, part_N, first); });
}

void embedding_part_backward(Stream& stream, Tensor dpart_N, CTensor dy_RTD, CTensor ids_R2T, int64_t first) {
  const Check check{"embedding_part_backward"};
  check.storage("dy_RTD", dy_RTD);
  check.rank("dy_RTD", dy_RTD, 3);
  check.rank("dpart_N", dpart_N, 1);
  check.input("dpart_N", dpart_N, compute_dtype(dy_RTD.dtype), dpart_N.shape);
  check.input("ids_R2T", ids_R2T, DType::i32, {dy_RTD.dim(0), 2, dy_RTD.dim(1)});
  check.that(first >= 0, "first", "not below 0");
  const double elements =
      static_cast<double>(dy_RTD.count()) / static_cast<double>(std::max<int64_t>(1, dy_RTD.dim(0)));
  const double each = static_cast<double>(size_of(dy_RTD.dtype) + 2 * size_of(dpart_N.dtype));
  const OpScope scope(stream, Op::embedding_part_backward,
                      {.bytes = elements * each + bytes(ids_R2T), .flops = elements}, dy_RTD);
  submit(stream,
         [=, &stream] { stream.kernels().embedding_part_backward(stream, dpart_N, dy_RTD, ids_R2T, first); });
}

void gather_rows(Stream& stream, Tensor y_ND, CTensor x_TD, CTensor rows_N) {
  const Check check{"gather_rows"};
  check.rank("x_TD", x_TD, 2);
  check.rank("y_ND", y_ND, 2);
  check.input("y_ND", y_ND, x_TD.dtype, {y_ND.dim(0), x_TD.dim(1)});
  check.input("rows_N", rows_N, DType::i32, {y_ND.dim(0)});
  const OpScope scope(stream, Op::gather_rows, {.bytes = 2 * bytes(y_ND) + bytes(rows_N)}, y_ND);
  submit(stream, [=, &stream] { stream.kernels().gather_rows(stream, y_ND, x_TD, rows_N); });
}

void scatter_rows(Stream& stream, Tensor dx_TD, CTensor dy_ND, CTensor rows_N) {
  const Check check{"scatter_rows"};
  check.rank("dx_TD", dx_TD, 2);
  check.rank("dy_ND", dy_ND, 2);
  check.input("dy_ND", dy_ND, dx_TD.dtype, {dy_ND.dim(0), dx_TD.dim(1)});
  check.input("rows_N", rows_N, DType::i32, {dy_ND.dim(0)});
  const OpScope scope(stream, Op::scatter_rows, {.bytes = bytes_of({dx_TD, dy_ND, rows_N})}, dx_TD);
  submit(stream, [=, &stream] { stream.kernels().scatter_rows(stream, dx_TD, dy_ND, rows_N); });
}

}  // namespace deltatune::ops
