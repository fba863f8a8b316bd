// Attention forward by cuDNN: the bucket of a row, and what is said where cuDNN has no plan after all.
//
// The bucket comes from the sizes of the row's tables alone, not from what one row holds: it costs a plan
// nothing measurable to be made for 64 documents of up to T tokens (bench/NOTES.md), and a captured step
// needs one plan for every row.
#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "ops/attention_cuda_scratch.h"

namespace deltatune::cuda {
namespace {

AttentionBucket bucket_for(const Segments& segments, int64_t tokens) {
  return {bucket_of(segments.cu_seqlens.dim(0) - 1, 1), bucket_of(tokens, cudnn_min_length)};
}

AttentionPlans& plans_of(const Stream& stream) {
  return static_cast<CudaDevice&>(stream.device()).attention_plans();
}

[[noreturn]] void refused(const Stream& stream, const char* op, const AttentionShape& shape) {
  throw Error(ErrorKind::resource, "cuDNN has no plan for it: " + plans_of(stream).refused(),
              std::string(op) + ", " + std::to_string(shape.query_heads) + " query and " +
                  std::to_string(shape.kv_heads) + " key heads of " + std::to_string(shape.head_dim) +
                  ", stream " + stream.name(),
              "set deterministic: true, which leaves deltatune's own kernels");
}

}  // namespace

void attention_forward_cudnn(Stream& stream, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                             CTensor proj_TN, const Segments& segments, AttentionShape shape) {
  if (!plans_of(stream).forward(stream, o_THK, lse_HT, q_THK, k_TGK, proj_TN, segments, shape,
                                bucket_for(segments, q_THK.dim(0)))) {
    refused(stream, "attention_forward", shape);
  }
}

}  // namespace deltatune::cuda
