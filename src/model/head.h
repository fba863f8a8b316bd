// The end of the model: final norm, the rows that have a target, logits in chunks, cross-entropy.
//
// Only supervised rows meet the head, a chunk of rows at a time, so that no buffer of logits is larger than
// chunk_rows x V whatever T is.
#pragma once

#include <functional>

#include "model/block.h"

namespace deltatune {

struct Head {
  struct Weights {
    CTensor norm_D, head_VD;
  };
  struct Grads {
    Tensor norm_D, head_VD;
  };
  /// The supervised rows of a packed row.
  struct Targets {
    CTensor rows_N;      ///< i32 [T]: positions whose logits have a target, then others; no position twice
    CTensor targets_N;   ///< i32 [T]: their target ids, then -1
    int64_t count = 0;   ///< rows that have a target
    int64_t padded = 0;  ///< rows that loss() works on, at least count: those behind count nothing in it
  };

  /// Rows per chunk: 1 GiB of logits at most, a multiple of 128 from 128 on, at least 64. Each chunk reads
  /// and writes the whole gradient of the head, so few large ones.
  static int64_t chunk_rows(const ModelConfig&, DType storage, int64_t tokens);

  /// loss_sum_1 (f64) += losses of all targets. dout_TD: gradient of the last block's output (may lie in the
  /// memory of `in`); empty: evaluation, no gradients.
  static void loss(Stream&, const Weights&, const Grads&, Residual in, Tensor dout_TD, Tensor loss_sum_1,
                   const Targets&, const ModelConfig&, const Row&);

  /// Logits of `rows.count` rows in chunks: each(first, logits_NV) is called after the chunk's work was
  /// queued.
  static void logits(Stream&, const Weights&, Residual in, const Targets& rows, const ModelConfig&,
                     const Row&, const std::function<void(int64_t, CTensor)>& each);
};

}  // namespace deltatune
