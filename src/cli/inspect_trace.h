// `deltatune inspect trace/rank0000.json.gz`: what a trace holds, and every event checked.
#pragma once

#include <string>

namespace deltatune::cli {

/// Prints the lanes that were busy longest, and problems; exit code 0, or 3 for a trace that breaks its
/// format. Throws Error{data} for a file that is no trace at all, or is above the bounds of check_trace().
int inspect_trace(const std::string& path, bool as_json);

}  // namespace deltatune::cli
