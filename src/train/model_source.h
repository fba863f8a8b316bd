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
/// The same for who uses a model and does not train it: weights that the folder has are taken although the
/// configuration of a training says `init: random`; where it has none, a warning says that they are random.
ModelSource open_trained_model(const std::string& name_or_path, const std::string& init);

/// Fills the store: from the checkpoint, or by the initialiser with `seed`.
void fill_store(ParamStore&, Stream&, const ModelSource&, uint64_t seed);

}  // namespace deltatune
