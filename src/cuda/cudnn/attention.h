// Attention forward by cuDNN: one plan for each bucket of rows, made when it is first needed.
//
// A plan is for `documents` documents of at most `length` tokens, packed; a row with fewer or shorter ones
// uses it too. It is made at the first call of its bucket (host time of the order of a second), so before a
// step is captured as a graph it has to have run once.
#pragma once

#include <memory>
#include <string>

#include "ops/kernels.h"

namespace deltatune::cuda {

/// What the plans of a call are for; see ops/attention_cuda_scratch.h.
struct AttentionBucket {
  int64_t documents = 0;
  int64_t length = 0;
};

/// cuDNN's handle and the plans made so far. One per device; safe to use from several threads.
class AttentionPlans {
 public:
  AttentionPlans();
  ~AttentionPlans();
  AttentionPlans(const AttentionPlans&) = delete;
  AttentionPlans& operator=(const AttentionPlans&) = delete;

  /// Queues the op on the stream; false, with nothing queued, where cuDNN has no plan for it within the
  /// scratch that the op announces, or there is no cuDNN.
  bool forward(Stream&, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK, CTensor proj_TN,
               const Segments&, AttentionShape, AttentionBucket);
  /// Why the last call returned false.
  std::string refused() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Around the calls of cuDNN (kernels/attention_cudnn.cu): its tables and layouts that are not ours.

/// Device memory of one call besides cuDNN's workspace. Offsets in elements.
struct AttentionTables {
  int32_t* lengths;    ///< [documents]
  int64_t* q_offsets;  ///< [documents + 1] of q and o
  int64_t* k_offsets;  ///< of k
  int64_t* v_offsets;  ///< of v, in rows of proj
  int64_t* h_offsets;  ///< of the log-sum-exps [T, H]
};
/// Fills the tables from cu_seqlens; documents that the row has not get length 0.
void fill_attention_tables(Stream&, const AttentionTables&, const Segments&, const AttentionShape&,
                           int64_t documents);
/// to[j, i] = from[i, j], both f32.
void transpose_f32(Stream&, float* to, const float* from, int64_t rows, int64_t columns);

}  // namespace deltatune::cuda
