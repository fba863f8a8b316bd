// The parameter store as a checkpoint sees it: the trained tensors by their Hugging Face names, each as far
// as this rank has it.
#pragma once

#include <string_view>
#include <vector>

#include "io/checkpoint_writer.h"
#include "train/model_source.h"
#include "train/state_image.h"

namespace deltatune {

class SavedWeights final : public PartSource {
 public:
  /// All three must outlive it. A tied checkpoint that ships its head a second time gets both copies trained.
  SavedWeights(const Engine& engine, const StateImage& image, const ModelSource& source);

  const TensorInfo* find(std::string_view name) const override;
  Part part(std::string_view name) const override;
  const std::byte* values(std::string_view name, int64_t first, int64_t count, std::byte* scratch,
                          Stream& stream) const override;

  /// All trained tensors by name, with the dtype a checkpoint of their own would have: `storage`, and F32 for
  /// keep_f32 parameters.
  std::vector<TensorInfo> trained(DType storage) const;

 private:
  struct Entry {
    TensorInfo info;
    bool keep_f32;
    ParamStore::SlicePart part;
  };
  const Entry* entry(std::string_view name) const;
  const StateImage& image_;
  std::vector<Entry> entries_;  ///< by name
  bool writes_replicated_;      ///< rank 0: what every rank has is written once
};

}  // namespace deltatune
