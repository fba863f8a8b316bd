// How a run saves: from its keys, and from the memory that is there.
#pragma once

#include <cstdint>

#include "train/checkpoint_saver.h"
#include "train/config.h"

namespace deltatune {

/// Whether saves of a run write from a copy of the state: where periodic saves are due and, on a GPU, `copy`
/// bytes on each rank of this machine leave a fifth of the `free` host memory. Throws Error{resource} where
/// async_save: true asks for more than there is.
bool saves_copy(const Config&, const Device&, uint64_t copy, uint64_t free);

/// For a run of `total_steps`; all ranks call it together. `side_files`: as in CheckpointOptions. Throws
/// Error{usage} for a max_shard_size that is no size, and what saves_copy does.
CheckpointOptions save_options(const Config&, const Engine&, const fs::path& side_files, int64_t total_steps);

}  // namespace deltatune
