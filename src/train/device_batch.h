// DeviceBatch: the device memory of one micro-batch's integers, and its upload.
//
// Shapes are static: T slots, at most max_documents documents. What differs from batch to batch (lengths,
// chunk table, supervised rows) is data in these tensors, so that a step can be captured once and replayed.
#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "model/model.h"
#include "tensor/arena.h"
#include "tensor/device.h"

namespace deltatune {

class DeviceBatch {
 public:
  DeviceBatch(int64_t tokens, int64_t max_documents);

  /// Places the tensors; twice, as Model::bind.
  void bind(Arena& arena);
  /// Queues the upload of a row and returns its views, valid until the next upload. The batch must have T
  /// slots and at most max_documents segments (assertion: the packer keeps both).
  RowInputs upload(Stream&, const Batch&);

 private:
  int64_t tokens_;
  int64_t max_documents_;
  Tensor tokens_T_, order_T_, positions_T_, rows_T_, targets_T_, cu_seqlens_S1_, chunks_C4_;
  // Host side of the same; uploads read from here.
  std::vector<int32_t> order_, rows_, targets_, cu_seqlens_, cu_padded_, chunks_;
  Batch host_;
};

}  // namespace deltatune
