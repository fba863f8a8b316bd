// What a file for `deltatune inspect` is, told by its content, and what a folder without a model holds.
//
// Neither checks the file: a reader of its own does that. Files of a run that other verbs read are known too,
// so that the answer can name the verb.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"

namespace deltatune::cli {

enum class InspectKind {
  trace,        ///< compressed, or an object with traceEvents, or named .json.gz
  profile,      ///< an object with format and ops: profile.json
  metrics,      ///< JSON Lines, the first with an event: metrics.jsonl
  rows,         ///< other JSON Lines, by name
  config,       ///< other JSON, by name
  safetensors,  ///< all else
};

/// Reads the file at most once and keeps nothing of it. Throws Error{data} where it cannot be read.
InspectKind inspect_kind(const std::string& path);

/// Throws Error{data} naming the files for a folder that has no config.json, but files of a run or a profile;
/// returns for any other.
void refuse_run_folder(const fs::path& folder);

}  // namespace deltatune::cli
