// Lays documents out in a row.
#include "data/batch.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenized_row.h"

namespace deltatune {
namespace {

void append_filler(Batch& batch, int64_t count, int32_t pad_id) {
  if (count == 0) return;
  for (int64_t t = 0; t < count; ++t) {
    batch.tokens.push_back(pad_id);
    batch.targets.push_back(ignored_label);
    batch.positions.push_back(static_cast<int32_t>(t));
  }
  batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens.size()));
}

void append_document(Batch& batch, const TokenizedSet& set, int32_t document) {
  const std::span<const int32_t> ids = set.ids(document);
  const int64_t length = set.length(document);
  for (int64_t t = 0; t < length; ++t) {
    const bool target = t + 1 < length && set.supervised(document, t + 1);
    batch.tokens.push_back(ids[static_cast<size_t>(t)]);
    batch.targets.push_back(target ? ids[static_cast<size_t>(t + 1)] : ignored_label);
    batch.positions.push_back(static_cast<int32_t>(t));
    if (target) ++batch.num_targets;
  }
  batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens.size()));
  ++batch.documents;
  batch.real_tokens += length;
  batch.lengths.push_back(static_cast<int32_t>(length));
}

}  // namespace

Batch make_batch(const TokenizedSet& set, std::span<const int32_t> documents, int64_t max_tokens,
                 int32_t pad_id, int32_t padded_to) {
  const auto slots = static_cast<size_t>(max_tokens);
  Batch batch;
  batch.tokens.reserve(slots);
  batch.targets.reserve(slots);
  batch.positions.reserve(slots);
  batch.cu_seqlens.push_back(0);
  for (const int32_t document : documents) {
    append_document(batch, set, document);
    append_filler(batch, std::max<int64_t>(0, padded_to - set.length(document)), pad_id);
  }
  DELTATUNE_ASSERT(batch.tokens.size() <= slots);
  append_filler(batch, max_tokens - static_cast<int64_t>(batch.tokens.size()), pad_id);
  return batch;
}

}  // namespace deltatune
