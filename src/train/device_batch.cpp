// From a host Batch to device tensors: token order, chunk table, compacted targets.
#include "train/device_batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/trace.h"

namespace deltatune {

DeviceBatch::DeviceBatch(int64_t tokens, int64_t max_documents, int64_t row_unit)
    : tokens_(tokens), max_documents_(max_documents), row_unit_(row_unit) {
  const auto take = [&](int64_t count) {
    const int64_t begin = at_.size;
    // As an arena would: what is taken starts at a multiple of 256 bytes. tokens and order are taken
    // together, for the ranks exchange them as one.
    at_.size += (count + 63) / 64 * 64;
    return begin;
  };
  at_.tokens = take(2 * tokens);
  at_.order = at_.tokens + tokens;
  at_.positions = take(tokens);
  at_.rows = take(tokens);
  at_.targets = take(tokens);
  at_.cu_seqlens = take(max_documents + 1);
  at_.chunks = take(4 * max_chunks(tokens, max_documents));
  own_.resize(slots_.size() * static_cast<size_t>(at_.size));
  for (size_t i = 0; i < slots_.size(); ++i)
    slots_[i].host =
        std::span(own_).subspan(i * static_cast<size_t>(at_.size), static_cast<size_t>(at_.size));
}

void DeviceBatch::allocate(Device& device) {
  const auto size = static_cast<size_t>(at_.size);
  staging_ =
      device.allocate_staging(slots_.size() * size * sizeof(int32_t), "staging of the batch", "activations");
  auto* memory = reinterpret_cast<int32_t*>(staging_.data());
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].host = {memory + i * size, size};
  own_ = {};
}

void DeviceBatch::bind(Arena& arena) {
  block_ = arena.take(DType::i32, {at_.size});
}

void DeviceBatch::fill_tokens(Slot& slot, const Batch& batch) const {
  std::copy(batch.tokens.begin(), batch.tokens.end(), slot.host.begin() + at_.tokens);
  std::copy(batch.positions.begin(), batch.positions.end(), slot.host.begin() + at_.positions);
  const auto order = slot.host.begin() + at_.order;
  std::iota(order, order + tokens_, 0);
  std::stable_sort(order, order + tokens_, [&](int32_t a, int32_t b) {
    return batch.tokens[static_cast<size_t>(a)] < batch.tokens[static_cast<size_t>(b)];
  });
}

// Supervised rows from the front, the others behind them: whatever number of rows is used, no row is there
// twice. Without a target (-1) a row's loss and gradient are zero.
void DeviceBatch::fill_targets(Slot& slot, const Batch& batch) const {
  const auto rows = slot.host.begin() + at_.rows;
  const auto targets = slot.host.begin() + at_.targets;
  int64_t supervised = 0;
  int64_t other = batch.num_targets;
  for (int64_t t = 0; t < tokens_; ++t) {
    const int32_t target = batch.targets[static_cast<size_t>(t)];
    const int64_t n = target >= 0 ? supervised++ : other++;
    DELTATUNE_ASSERT(n < tokens_);
    rows[n] = static_cast<int32_t>(t);
    targets[n] = target >= 0 ? target : -1;
  }
  DELTATUNE_ASSERT(supervised == batch.num_targets);
}

int64_t DeviceBatch::fill_segments(Slot& slot, const Batch& batch) const {
  slot.starts = batch.cu_seqlens;
  const auto starts = slot.host.begin() + at_.cu_seqlens;
  std::fill(starts, starts + max_documents_ + 1, static_cast<int32_t>(tokens_));
  std::copy(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), starts);
  const auto chunks = slot.host.begin() + at_.chunks;
  std::fill(chunks, chunks + 4 * max_chunks(tokens_, max_documents_), 0);
  int64_t chunk = 0;
  for (size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d) {
    const int32_t end = batch.cu_seqlens[d + 1];
    int32_t number = 0;
    for (int32_t at = batch.cu_seqlens[d]; at < end; at += static_cast<int32_t>(gdn_chunk)) {
      chunks[4 * chunk] = static_cast<int32_t>(d);
      chunks[4 * chunk + 1] = at;
      chunks[4 * chunk + 2] = std::min(static_cast<int32_t>(gdn_chunk), end - at);
      chunks[4 * chunk + 3] = number++;
      ++chunk;
    }
  }
  return chunk;
}

RowInputs DeviceBatch::upload(Stream& stream, const Batch& batch) {
  DELTATUNE_ASSERT(static_cast<int64_t>(batch.tokens.size()) == tokens_ &&
                   static_cast<int64_t>(batch.cu_seqlens.size()) <= max_documents_ + 1);
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  const TraceSpan span("prepare the row");
  {
    const TraceSpan waiting("wait for the device", TraceKind::wait);
    stream.host_wait(slot.copied);
  }
  fill_tokens(slot, batch);
  fill_targets(slot, batch);
  const int64_t chunks = fill_segments(slot, batch);
  {
    const TraceSpan copy("copy row", TraceKind::op, stream.name(), static_cast<double>(block_.bytes()));
    stream.upload(block_, slot.host.data());
  }
  stream.record(slot.copied);

  const auto view = [&](int64_t begin, Shape shape) {
    return CTensor(block_.slice(begin, shape.count()).reshaped(shape));
  };
  const int64_t padded = (batch.num_targets + row_unit_ - 1) / row_unit_ * row_unit_;
  RowInputs row;
  row.tokens_T = view(at_.tokens, {tokens_});
  row.order_T = view(at_.order, {tokens_});
  row.ids_2T = view(at_.tokens, {2, tokens_});
  row.segments = {view(at_.cu_seqlens, {max_documents_ + 1}), view(at_.positions, {tokens_}),
                  view(at_.chunks, {max_chunks(tokens_, max_documents_), 4}), slot.starts, chunks};
  row.targets = {view(at_.rows, {tokens_}), view(at_.targets, {tokens_}), batch.num_targets,
                 std::min(padded, tokens_)};
  return row;
}

}  // namespace deltatune
