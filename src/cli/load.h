// From files and flags to one Config: a flag beats the YAML file, the file beats the default; every value
// knows where it came from. Nothing is ignored in silence: an unknown key, a key given twice and a key of
// another framework each stop with exit code 2.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/options.h"

namespace deltatune::cli {

/// A command line cut into words. `flags` are in the order given, names with '_'; a flag without value (a
/// switch) has "true" or "false".
struct CommandLine {
  struct Flag {
    std::string name;
    std::string value;
    std::string spelling;  ///< as typed: "--learning-rate"
  };
  std::vector<std::string> positional;
  std::vector<Flag> flags;
  bool help = false;  ///< -h or --help
};

/// Cuts the words after the verb. `reader` selects the rows whose flags exist. `--key=value`, `--key value`,
/// `--switch`, `--no-switch`, `-q`, `-v`, `-h`; everything after `--` is positional. Throws Error{usage} for
/// a flag without its value; unknown flags are left to load().
CommandLine split(const std::vector<std::string>& words, unsigned reader);

/// Where a value came from.
struct Origin {
  std::string source;  ///< "default", "file cfg.yaml:3", "flag --lr"
  std::string alias;   ///< the key as it was spelled, when not the option's own name
};

struct Loaded {
  Config config;
  std::map<std::string, Origin> origins;  ///< by option name; options at their default are absent
  std::vector<std::string> notices;       ///< one sentence per alias or translated key
};

/// Reads `file` (empty: none), then the flags. Throws Error{usage}.
Loaded load(const std::string& file, const std::vector<CommandLine::Flag>& flags, unsigned reader);

/// As load(), from YAML text; `where` names it.
Loaded load_text(std::string_view text, const std::string& where, const std::vector<CommandLine::Flag>& flags,
                 unsigned reader);

/// config.resolved.yaml: every key that a file may hold with its value, and its origin as a comment. It loads
/// back to the same Config.
std::string resolved_yaml(const Loaded& loaded);

}  // namespace deltatune::cli
