// Which device a run asks for.
#pragma once

#include <memory>

#include "tensor/device.h"
#include "train/config.h"

namespace deltatune::cli {

/// `device: auto|cpu|cuda`. Throws Error{resource} for cuda where this build or machine has none. local_rank:
/// which of this machine's GPUs; a launcher that shows each rank one GPU of its own has done that already.
std::unique_ptr<Device> open_device(const Config& config, int local_rank = 0);

/// Whether that is a GPU: `cuda`, or `auto` where there is one.
bool wants_gpu(const Config& config);
/// How many GPUs this process sees; 0 without a plug-in.
int gpu_count();

}  // namespace deltatune::cli
