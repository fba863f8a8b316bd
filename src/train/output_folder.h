// The output folder of a run before its first step: created, writable, and not another run's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "train/config.h"

namespace deltatune {

/// Creates output_dir and tries to write into it. A folder that holds another run (a metrics file or
/// checkpoints) is refused unless the run resumes, or overwrite_output_dir says to start anew: then that
/// run's checkpoints and metrics are removed. Throws Error{usage} and Error{resource}.
void prepare_output_folder(const Config& config, bool resuming);

/// "5GB" -> 5,000,000,000; KB, MB, GB, TB are powers of 1000 as in huggingface_hub, KiB ... powers of 1024.
/// Throws Error{usage}.
int64_t parse_bytes(std::string_view text);

}  // namespace deltatune
