// Which device a run asks for.
#pragma once

#include <memory>

#include "tensor/device.h"
#include "train/config.h"

namespace deltatune::cli {

/// `device: auto|cpu|cuda`. Throws Error{resource} for cuda where this build or machine has none.
std::unique_ptr<Device> open_device(const Config& config);

}  // namespace deltatune::cli
