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
GraphMode graph_mode(const Config&);
/// Of Adam's m and v; u8: 8-bit codes. Throws Error{usage} where optim and optim_dtype contradict each other.
DType moments_dtype(const Config&);
Rounding weight_rounding(const Config&);
/// Throws Error{usage} where keys that an engine depends on exclude each other, naming both. engine_options()
/// does it too; a run calls it before it reads its data.
void check_engine_keys(const Config&, bool train);

/// Options of an engine that trains (or, train: false, only looks). `keep` comes from choose_keep.
EngineOptions engine_options(const Config&, Keep keep, bool train);

/// One line for the log: which parameters weight decay leaves out.
std::string describe_decay(const ParamTable&, double weight_decay);

}  // namespace deltatune
