// Checks and cost of cross_entropy.
#include "ops/loss.h"

#include "ops/checks.h"
#include "ops/kernel_list.h"
#include "ops/op.h"

namespace deltatune::ops {

void cross_entropy(Stream& stream, Tensor loss_sum_1, Tensor dlogits_NV, CTensor logits_NV,
                   CTensor targets_N) {
  const Check check{"cross_entropy"};
  check.storage("logits_NV", logits_NV);
  check.rank("logits_NV", logits_NV, 2);
  check.that(logits_NV.dim(1) >= 1, "logits_NV", "at least one column");
  check.input("loss_sum_1", loss_sum_1, DType::f64, {1});
  check.output("dlogits_NV", dlogits_NV, logits_NV.dtype, logits_NV.shape);
  check.input("targets_N", targets_N, DType::i32, {logits_NV.dim(0)});
  require_scratch(stream, Op::cross_entropy,
                  {.storage = logits_NV.dtype, .rows = logits_NV.dim(0), .columns = logits_NV.dim(1)});
  const OpScope scope(stream, Op::cross_entropy,
                      {.bytes = bytes_of({loss_sum_1, dlogits_NV, logits_NV, targets_N}),
                       .flops = (dlogits_NV.empty() ? 4.0 : 7.0) * static_cast<double>(logits_NV.count())},
                      logits_NV);
  submit(stream, [=, &stream] {
    stream.kernels().cross_entropy(stream, loss_sum_1, dlogits_NV, logits_NV, targets_N);
  });
}

}  // namespace deltatune::ops
