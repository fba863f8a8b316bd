// From a Config to an Engine: dtype, recompute policy and optimizer settings. `train`, `eval`, `generate` and
// `plan` all go through here, so that they cannot disagree.
#pragma once

#include <cstdint>
#include <string>

#include "train/config.h"
#include "train/engine.h"
#include "train/model_source.h"

namespace deltatune {

DType storage_dtype(const Config&);

/// Options of an engine that trains (or, train: false, only looks). `keep` comes from choose_keep.
EngineOptions engine_options(const Config&, Keep keep, bool train);

/// The activations that `recompute`: none, cheap or block keeps. Not for auto, see choose_keep.
Keep keep_of(const std::string& recompute);

/// What `recompute` asks for: none keeps all activations, cheap the matrix products' outputs, block nothing
/// but the blocks' inputs; auto is the first of these whose plan fits `budget_bytes`.
struct KeepChoice {
  Keep keep;
  std::string name;  ///< "none", "cheap" or "block"
  size_t plan_bytes = 0;
};
KeepChoice choose_keep(const Config&, const ModelSource&, Target target, int world_size,
                       uint64_t budget_bytes);

/// One line for the log: which parameters weight decay leaves out.
std::string describe_decay(const ParamTable&, double weight_decay);

}  // namespace deltatune
