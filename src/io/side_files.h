// The files of a checkpoint folder besides weights: tokenizer, template, configuration, documentation.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"

namespace deltatune {

/// The files of a checkpoint folder that a fine-tuned copy takes over: every regular file that is neither
/// weights (of any format), nor an index of them, nor left by a training run; also those in sub-folders of up
/// to 100 MB. Relative paths, sorted.
std::vector<fs::path> side_files_of(const fs::path& folder);

/// Copies the side files of `from` (empty: of nowhere) into `to`, each fsynced. config.json is `config_text`,
/// byte for byte, where that is not empty. Throws Error{resource}.
void copy_side_files(const fs::path& from, const fs::path& to, const std::string& config_text);

}  // namespace deltatune
