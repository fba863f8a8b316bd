// Where a run's model comes from: a checkpoint folder opened and checked, or only its config.json (init:
// random).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint_reader.h"
#include "model/config.h"
#include "model/params.h"
#include "shard/param_store.h"
#include "tensor/param_source.h"

namespace deltatune {

struct ModelSource {
  fs::path folder;
  std::unique_ptr<HfCheckpoint>
      checkpoint;  ///< always there; without weights in a folder that only has config.json
  ModelConfig config;
  bool random = false;  ///< start from the initialiser
  bool tied = false;

  /// The checkpoint that a save takes its files from; nullptr when the run started from config.json alone.
  const HfCheckpoint* weights_source() const { return random ? nullptr : checkpoint.get(); }
};

/// Opens `name_or_path` (a folder, or an id of the local Hugging Face cache). init: "pretrained" or "random".
/// Throws Error{model} for everything that cannot be trained: see io/checkpoint_reader.h, io/tensor_names.h,
/// model/config.h.
ModelSource open_model(const std::string& name_or_path, const std::string& init);

/// Fills the store: from the checkpoint, or by the initialiser with `seed`.
void fill_store(ParamStore&, Stream&, const ModelSource&, uint64_t seed);

/// The store seen as the checkpoint's tensors, in f32, by their Hugging Face names. Both must outlive it.
/// Where there are more ranks, rank 0 reads and the others serve(): each read gathers one tensor.
class StoreSource final : public ParamSource {
 public:
  /// `source`: where the model came from; a tied checkpoint that ships its head a second time gets both
  /// copies trained.
  StoreSource(const ParamStore& store, Communicator& comm, Stream& stream, const ModelSource& source);
  const TensorInfo* find(std::string_view name) const override;
  void read(std::string_view name, std::byte* to) const override;
  /// Rank 0, after its last read, whether all went well or not: the others may go on.
  void finish() const;
  /// The other ranks: gives what rank 0 asks for until it is finished.
  void serve() const;

  /// All trained tensors by name, with the dtype a checkpoint of their own would have: `storage`,
  /// and F32 for keep_f32 parameters.
  std::vector<TensorInfo> trained(DType storage) const;

 private:
  struct Entry {
    TensorInfo info;
    const Param* param;
    const ParamSlice* slice;
  };
  const Entry* entry(std::string_view name) const;
  const ParamStore& store_;
  Communicator& comm_;
  Stream& stream_;
  std::vector<Entry> entries_;
};

}  // namespace deltatune
