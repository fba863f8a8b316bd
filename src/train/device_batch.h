// DeviceBatch: the device memory of one micro-batch's integers, and its upload.
//
// Shapes are static: T slots, at most max_documents documents. What differs from batch to batch (lengths,
// chunk table, supervised rows) is data in these tensors, so that a step can be captured once and replayed.
// They lie in one block, which two blocks of staging memory mirror: an upload is one copy that the host does
// not wait for, while it fills the other mirror.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "data/batch.h"
#include "model/model.h"
#include "tensor/arena.h"
#include "tensor/device.h"

namespace deltatune {

class DeviceBatch {
 public:
  /// The rows that the head works on are the supervised ones, made up to a multiple of `row_unit` by others
  /// without a target (Head::Targets::padded): so the head's products have few shapes.
  DeviceBatch(int64_t tokens, int64_t max_documents, int64_t row_unit = 1);
  DeviceBatch(DeviceBatch&&) = default;
  DeviceBatch(const DeviceBatch&) = delete;
  DeviceBatch& operator=(const DeviceBatch&) = delete;

  /// Staging memory from the device. Without this call uploads come from ordinary memory.
  void allocate(Device&);
  /// Places the tensors; twice, as Model::bind.
  void bind(Arena& arena);
  /// Queues the upload of a row and returns its views, valid until the upload after the next one. The batch
  /// must have T slots and at most max_documents segments (assertion: the packer keeps both).
  RowInputs upload(Stream&, const Batch&);

 private:
  /// A block's tensors, in elements from its start.
  struct Layout {
    int64_t tokens = 0, order = 0, positions = 0, rows = 0, targets = 0, cu_seqlens = 0, chunks = 0, size = 0;
  };
  struct Slot {
    std::span<int32_t> host;
    std::vector<int32_t> starts;  ///< Segments::host_cu_seqlens
    Event copied;                 ///< the slot may be written again behind this
  };
  void fill_tokens(Slot&, const Batch&) const;
  void fill_targets(Slot&, const Batch&) const;
  /// Returns the number of chunks.
  int64_t fill_segments(Slot&, const Batch&) const;

  int64_t tokens_;
  int64_t max_documents_;
  int64_t row_unit_;
  Layout at_;
  Tensor block_;
  Buffer staging_;
  std::vector<int32_t> own_;  ///< in place of staging
  std::array<Slot, 2> slots_;
  size_t next_ = 0;
};

}  // namespace deltatune
