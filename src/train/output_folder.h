// The output folder of a run before its first step: created, writable, and not another run's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"
#include "comm/communicator.h"
#include "train/config.h"

namespace deltatune {

/// Creates output_dir and tries to write into it; removes nothing. A folder that holds another run (a metrics
/// file or checkpoints) is refused unless the run resumes or overwrite_output_dir says to start anew; one
/// that holds weights but no run, unless overwrite_output_dir is set. A folder that is the input model, or
/// whose checkpoints to be removed hold it, is refused always. Throws Error{usage} and Error{resource}.
void prepare_output_folder(const Config& config, bool resuming);

/// Whether all ranks see the same `folder`: rank 0 writes a file that each of the others must find within a
/// few seconds. All ranks call it together. Throws Error{resource} on a rank that does not,
/// Error{distributed} on the others.
void check_shared_folder(Communicator& comm, const fs::path& folder);

/// Removes the checkpoints and metrics in `output_dir`: what overwrite_output_dir asks for, called once model
/// and data of the new run are loaded, so that a wrong path costs nothing. Throws Error{resource}.
void remove_previous_run(const fs::path& output_dir);

/// "5GB" -> 5,000,000,000; KB, MB, GB, TB are powers of 1000 as in huggingface_hub, KiB ... powers of 1024.
/// Throws Error{usage}.
int64_t parse_bytes(std::string_view text);

}  // namespace deltatune
