// Texts generated from the options table and the table of verbs.
#pragma once

#include <string>

#include "cli/verbs.h"

namespace deltatune::cli {

/// The verb table that `deltatune` alone prints.
std::string overview();

/// `deltatune <verb> --help`: usage and the options the verb reads, by group, with defaults.
std::string verb_help_text(const Verb& verb);

/// All keys with type, default and aliases; `key` non-empty: that key only (nothing printed for an unknown
/// one).
std::string options_text(const std::string& key);

/// docs/reference/options.md.
std::string options_markdown();

/// JSON schema (draft 2020-12) of a configuration file, for editors.
std::string options_schema();

/// "deltatune 0.1.0 (commit ...)" with compiler and CUDA architectures, one fact per line.
std::string version_text();

}  // namespace deltatune::cli
