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
/// Of Adam's m and v.
DType moments_dtype(const Config&);
Rounding weight_rounding(const Config&);

/// Options of an engine that trains (or, train: false, only looks). `keep` comes from choose_keep.
EngineOptions engine_options(const Config&, Keep keep, bool train);

/// Whether saves of a run write from a copy of the state: where periodic saves are due and, on a GPU, `copy`
/// bytes on each rank of this machine leave a fifth of the `free` host memory. Throws Error{resource} where
/// async_save: true asks for more than there is.
bool saves_copy(const Config&, const Device&, uint64_t copy, uint64_t free);

/// One line for the log: which parameters weight decay leaves out.
std::string describe_decay(const ParamTable&, double weight_decay);

}  // namespace deltatune
