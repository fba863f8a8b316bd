// Output folders as the verbs `report` and `advise` open them.
#pragma once

#include "observe/run_folder.h"

namespace deltatune::cli {

/// Reads the folder and says on stderr how far it is when that takes seconds. Throws Error{data} for a folder
/// that no run has written.
RunFolder open_run(const fs::path& path);

}  // namespace deltatune::cli
