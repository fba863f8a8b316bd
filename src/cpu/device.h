// The CPU device: host memory, and streams that run the cpu table.
//
// Two kinds of stream. `direct` (always, outside tests): work runs inside the call. `threaded` (tests only):
// each stream is a thread, so that a missing wait(event) is a data race that ThreadSanitizer reports.
// Deliberately not a way to run faster: kernels use the thread pool inside.
#pragma once

#include <memory>

#include "tensor/device.h"

namespace deltatune {

enum class StreamMode { direct, threaded };

/// Throws Error{resource} when this machine lacks an instruction set that the kernels were compiled for.
std::unique_ptr<Device> make_cpu_device(StreamMode mode = StreamMode::direct);

}  // namespace deltatune
