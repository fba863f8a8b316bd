// Slices of parameters by name.
#include "train/saved_weights.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace deltatune {

SavedWeights::SavedWeights(const Engine& engine, const StateImage& image, const ModelSource& source)
    : image_(image), writes_replicated_(engine.comm().rank() == 0) {
  const ParamStore& store = engine.store();
  const auto add = [&](const std::string& name, const Param& param, const ParamSlice& slice) {
    const ParamStore::SlicePart part = store.slice_part(param, slice);
    // Where the rank has nothing of it, there is no view that knows the dtype.
    const bool f32 = param.keep_f32 || store.options().storage == DType::f32;
    const bool master = store.options().train && store.options().master;
    const DType dtype = f32 || master ? DType::f32 : store.options().storage;
    DELTATUNE_ASSERT(part.count == 0 || part.values.dtype == dtype);
    entries_.push_back({{name, dtype, slice.hf_shape}, param.keep_f32, part});
  };
  for (const Param& param : store.table().params) {
    for (const ParamSlice& slice : param.slices) add(slice.hf_name, param, slice);
  }
  const std::string head = "lm_head.weight";
  if (source.tied && !source.random && source.checkpoint->find(head)) {
    const Param& embedding = store.table().params.front();
    add(head, embedding, embedding.slices.front());
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.info.name < b.info.name; });
}

const SavedWeights::Entry* SavedWeights::entry(std::string_view name) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                                   [](const Entry& e, std::string_view n) { return e.info.name < n; });
  return at != entries_.end() && at->info.name == name ? &*at : nullptr;
}

const TensorInfo* SavedWeights::find(std::string_view name) const {
  const Entry* found = entry(name);
  return found ? &found->info : nullptr;
}

PartSource::Part SavedWeights::part(std::string_view name) const {
  const Entry* found = entry(name);
  DELTATUNE_ASSERT(found != nullptr);
  if (found->part.replicated && !writes_replicated_) return {};
  return {found->part.first, found->part.count};
}

const std::byte* SavedWeights::values(std::string_view name, int64_t first, int64_t count, std::byte* scratch,
                                      Stream& stream) const {
  const ParamStore::SlicePart& part = entry(name)->part;
  const Tensor view = part.values.slice(first - part.first, count);
  return image_.at(view.data, view.bytes(), scratch, stream);
}

std::vector<TensorInfo> SavedWeights::trained(DType storage) const {
  std::vector<TensorInfo> out;
  for (const Entry& e : entries_) {
    out.push_back({e.info.name, e.keep_f32 ? DType::f32 : storage, e.info.shape});
  }
  return out;
}

}  // namespace deltatune
