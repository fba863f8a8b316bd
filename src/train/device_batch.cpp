// From a host Batch to device tensors: token order, chunk table, compacted targets.
#include "train/device_batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace deltatune {

DeviceBatch::DeviceBatch(int64_t tokens, int64_t max_documents)
    : tokens_(tokens), max_documents_(max_documents) {}

void DeviceBatch::bind(Arena& arena) {
  const auto take = [&](Shape shape) { return arena.take(DType::i32, shape); };
  tokens_T_ = take({tokens_});
  order_T_ = take({tokens_});
  positions_T_ = take({tokens_});
  rows_T_ = take({tokens_});
  targets_T_ = take({tokens_});
  cu_seqlens_S1_ = take({max_documents_ + 1});
  chunks_C4_ = take({max_chunks(tokens_, max_documents_), 4});
}

RowInputs DeviceBatch::upload(Stream& stream, const Batch& batch) {
  const auto T = static_cast<size_t>(tokens_);
  DELTATUNE_ASSERT(batch.tokens.size() == T &&
                   batch.cu_seqlens.size() <= static_cast<size_t>(max_documents_) + 1);
  host_ = batch;
  cu_seqlens_ = batch.cu_seqlens;

  order_.resize(T);
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return host_.tokens[static_cast<size_t>(a)] < host_.tokens[static_cast<size_t>(b)];
  });

  rows_.assign(T, 0);
  targets_.assign(T, 0);
  size_t count = 0;
  for (size_t t = 0; t < T; ++t) {
    if (host_.targets[t] < 0) continue;
    rows_[count] = static_cast<int32_t>(t);
    targets_[count++] = host_.targets[t];
  }
  DELTATUNE_ASSERT(static_cast<int64_t>(count) == host_.num_targets);

  cu_padded_ = cu_seqlens_;
  cu_padded_.resize(static_cast<size_t>(max_documents_) + 1, static_cast<int32_t>(tokens_));
  chunks_.assign(static_cast<size_t>(chunks_C4_.count()), 0);
  size_t chunk = 0;
  for (size_t d = 0; d + 1 < cu_seqlens_.size(); ++d) {
    int32_t number = 0;
    for (int32_t at = cu_seqlens_[d]; at < cu_seqlens_[d + 1]; at += static_cast<int32_t>(gdn_chunk)) {
      chunks_[4 * chunk] = static_cast<int32_t>(d);
      chunks_[4 * chunk + 1] = at;
      chunks_[4 * chunk + 2] = std::min(static_cast<int32_t>(gdn_chunk), cu_seqlens_[d + 1] - at);
      chunks_[4 * chunk + 3] = number++;
      ++chunk;
    }
  }

  stream.upload(tokens_T_, host_.tokens.data());
  stream.upload(order_T_, order_.data());
  stream.upload(positions_T_, host_.positions.data());
  stream.upload(rows_T_, rows_.data());
  stream.upload(targets_T_, targets_.data());
  stream.upload(cu_seqlens_S1_, cu_padded_.data());
  stream.upload(chunks_C4_, chunks_.data());

  RowInputs row;
  row.tokens_T = tokens_T_;
  row.order_T = order_T_;
  row.segments = {cu_seqlens_S1_, positions_T_, chunks_C4_, cu_seqlens_, static_cast<int64_t>(chunk)};
  row.targets = {rows_T_, targets_T_, static_cast<int64_t>(count)};
  return row;
}

}  // namespace deltatune
