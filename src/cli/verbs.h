// The table of verbs. A verb is one row here and one file verb_<name>.cpp with its body.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/load.h"

namespace deltatune::cli {

/// What a verb's body gets: the parsed command.
struct Invocation {
  Loaded loaded;
  std::string config_file;             ///< empty when none was given
  std::vector<std::string> arguments;  ///< positional words other than the configuration file
  std::string command_line;            ///< as typed, for run.json
  std::vector<std::string> words;      ///< the same, word by word, without the program

  const Config& config() const { return loaded.config; }
};

/// What the positional words of a verb are.
enum class Takes {
  config,  ///< one YAML file, optional
  data,    ///< one YAML file (.yaml, .yml), or else one entry of `dataset`; optional
  path,    ///< one file or folder, required, in arguments[0]
  paths,   ///< one or two folders, in arguments
  model,   ///< one checkpoint, optional; sets model_name_or_path
  words,   ///< any number of words
  none,
};

struct Verb {
  const char* name;      ///< "train", "data show"
  const char* alias;     ///< second spelling or nullptr
  const char* argument;  ///< placeholder of the positional word in help, "" for none
  const char* summary;   ///< one line
  Takes takes;
  unsigned reader;                ///< bit that selects the options it reads
  int (*run)(const Invocation&);  ///< returns the exit code; throws Error
};

/// All verbs in the order of help.
std::span<const Verb> verbs();

/// Runs `deltatune WORDS...` and returns the exit code. Results go to stdout; errors are thrown.
int dispatch(const std::vector<std::string>& words);

/// Bodies: each in its own file.
int verb_train(const Invocation& call);
int verb_profile(const Invocation& call);
int verb_plan(const Invocation& call);
int verb_eval(const Invocation& call);
int verb_generate(const Invocation& call);
int verb_parity(const Invocation& call);
int verb_bench_op(const Invocation& call);
int verb_bench_step(const Invocation& call);
int verb_bench_ladder(const Invocation& call);
int verb_help(const Invocation& call);
int verb_data_show(const Invocation& call);
int verb_data_stats(const Invocation& call);
int verb_data_pack(const Invocation& call);
int verb_data_check(const Invocation& call);
int verb_data_render(const Invocation& call);
int verb_data_tokenize(const Invocation& call);
int verb_inspect(const Invocation& call);
int verb_doctor(const Invocation& call);
int verb_report(const Invocation& call);
int verb_advise(const Invocation& call);

}  // namespace deltatune::cli
