// The null device of `plan`: counts what is asked for and computes nothing.
#pragma once

#include <memory>

#include "tensor/device.h"

namespace deltatune {

/// Plans for a device of these facts: its kernels' scratch sizes apply. Addresses are distinct, not null, and
/// must not be touched; download() writes zeros.
std::unique_ptr<Device> make_null_device(const DeviceFacts& facts);
/// The same for the CPU, or for a GPU of compute capability 9.0.
std::unique_ptr<Device> make_null_device(Target target);

}  // namespace deltatune
