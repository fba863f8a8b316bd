// Rows of the verb table, and the way from the command line to a verb's body.
#include "cli/verbs.h"

#include <cstdio>

#include "base/error.h"
#include "base/format.h"
#include "base/heartbeat.h"
#include "base/json.h"
#include "base/log.h"
#include "base/suggest.h"
#include "build_info.h"
#include "cli/help.h"
#include "comm/launch.h"
#include "data/remote.h"
#include "data/remote_files.h"

namespace deltatune::cli {
namespace {

constexpr Verb table[] = {
    {"train", "sft", "cfg.yaml", "fine-tune a checkpoint", Takes::config, reader::train, verb_train},
    {"profile", nullptr, "cfg.yaml", "train a few steps, save nothing, and say where their time went",
     Takes::config, reader::train | reader::profile, verb_profile},
    {"plan", nullptr, "cfg.yaml", "memory and time of a run, computed without running it", Takes::config,
     reader::plan, verb_plan},
    {"eval", nullptr, "cfg.yaml", "loss and perplexity on a dataset", Takes::config, reader::eval, verb_eval},
    {"generate", nullptr, "ckpt/", "sample from a checkpoint: --prompt TEXT", Takes::model, reader::generate,
     verb_generate},
    {"parity", nullptr, "case-folder/", "compare with the numbers of a golden case", Takes::path,
     reader::parity, verb_parity},
    {"data show", nullptr, "cfg.yaml or dataset", "rows as rendered, with the trained tokens marked",
     Takes::data, reader::data_show, verb_data_show},
    {"data stats", nullptr, "cfg.yaml or dataset", "lengths, truncation, fill, trained share, steps",
     Takes::data, reader::data_stats, verb_data_stats},
    {"data pack", nullptr, "cfg.yaml or dataset",
     "rows, steps and fill of an epoch; --compare: of every way of batching", Takes::data, reader::data_pack,
     verb_data_pack},
    {"data check", nullptr, "cfg.yaml or dataset",
     "every bad row, duplicates, cut rows; exit code 3 if any is bad", Takes::data, reader::data_check,
     verb_data_check},
    {"data render", nullptr, "cfg.yaml",
     "rows, or conversations of --messages FILE, through the chat template alone", Takes::config,
     reader::data_render, verb_data_render},
    {"data tokenize", nullptr, "cfg.yaml or -",
     "token ids of rows, of --text, or (-) of each line of standard input", Takes::config,
     reader::data_tokenize, verb_data_tokenize},
    {"bench op", nullptr, "[glob]",
     "time the ops of a training step one by one, against the machine's limits", Takes::words,
     reader::bench_op, verb_bench_op},
    {"bench step", nullptr, "", "time a training step at a model's width, against its matrix products alone",
     Takes::none, reader::bench_step, verb_bench_step},
    {"bench ladder", nullptr, "",
     "hours of an epoch: plain and padded, fused, packed, recompute: auto, CUDA graph; a rung each",
     Takes::none, reader::bench_ladder, verb_bench_ladder},
    {"inspect", nullptr, "path",
     "what a safetensors file, config, checkpoint, run's checkpoint or trace holds", Takes::path,
     reader::inspect, verb_inspect},
    {"doctor", nullptr, "", "versions, processor, memory, GPUs and environment", Takes::none, reader::doctor,
     verb_doctor},
    {"report", nullptr, "output_dir/ [other/]",
     "write report.html of a running or finished run, or a page of two side by side", Takes::paths,
     reader::report, verb_report},
    {"advise", nullptr, "output_dir/", "what a running or finished run shows, and which key would change it",
     Takes::path, reader::advise, verb_advise},
    {"help", nullptr, "[verb]", "explain a verb, or the keys: help --options [key]", Takes::words, 0,
     verb_help},
};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

// The verb named by the first one or two words; `used` gets how many.
const Verb* find_verb(const std::vector<std::string>& words, size_t& used) {
  for (const Verb& verb : table) {
    const std::string name = verb.name;
    const size_t space = name.find(' ');
    const bool two = space != std::string::npos;
    const bool match =
        two ? words.size() > 1 && words[0] == name.substr(0, space) && words[1] == name.substr(space + 1)
            : words[0] == name || (verb.alias != nullptr && words[0] == verb.alias);
    if (match) {
      used = two ? 2 : 1;
      return &verb;
    }
  }
  return nullptr;
}

[[noreturn]] void unknown_verb(const std::vector<std::string>& words) {
  std::vector<std::string> names;
  std::string parts;
  for (const Verb& verb : table) {
    const std::string name = verb.name;
    names.push_back(name);
    if (name.starts_with(words[0] + " "))
      parts += (parts.empty() ? "" : ", ") + name.substr(words[0].size() + 1);
  }
  if (!parts.empty()) {
    throw Error(
        ErrorKind::usage,
        words.size() > 1 ? format("{} has no part {}", words[0], words[1]) : format("{} what?", words[0]),
        "command line", format("one of: {}", parts));
  }
  const std::string close = nearest(words[0], names);
  throw Error(ErrorKind::usage, format("unknown verb {}", words[0]), "command line",
              close.empty() ? "`deltatune` alone lists the verbs" : format("did you mean {}?", close));
}

/// Help of all parts of `bench`, `data`; empty for a word that has none.
std::string parts_help(const std::string& word) {
  std::string text;
  for (const Verb& verb : table) {
    if (!std::string(verb.name).starts_with(word + " ")) continue;
    text += (text.empty() ? "" : "\n") + verb_help_text(verb);
  }
  return text;
}

void take_positional(const Verb& verb, CommandLine& line, Invocation& call) {
  if (verb.takes == Takes::words) {
    call.arguments = line.positional;
    return;
  }
  const bool path = verb.takes == Takes::path || verb.takes == Takes::paths;
  const size_t most = verb.takes == Takes::none ? 0 : verb.takes == Takes::paths ? 2 : 1;
  if (line.positional.size() > most) {
    throw Error(ErrorKind::usage, format("unexpected argument {}", line.positional[most]), "command line",
                format("usage: deltatune {} {}", verb.name, verb.argument));
  }
  if (path && line.positional.empty()) {
    throw Error(ErrorKind::usage, format("{} needs {}", verb.name, verb.argument), "command line",
                format("usage: deltatune {} {}", verb.name, verb.argument));
  }
  if (line.positional.empty()) return;
  const std::string& word = line.positional[0];
  const bool yaml = word.ends_with(".yaml") || word.ends_with(".yml");
  if (word == "-" && verb.run == verb_data_tokenize) {
    line.flags.push_back({"text", word, word});
    return;
  }
  if (verb.takes == Takes::config || (verb.takes == Takes::data && yaml)) call.config_file = word;
  if (verb.takes == Takes::data && !yaml) {
    // As a list of one: a name is a name, whatever YAML would see in it.
    line.flags.push_back({"dataset", "[" + json::quote(word) + "]", verb.argument});
  }
  if (path) call.arguments = line.positional;
  if (verb.takes == Takes::model)
    line.flags.push_back({"model_name_or_path", line.positional[0], verb.argument});
}

bool has_ranks(const Verb& verb) {
  return verb.run == verb_train || verb.run == verb_profile;
}

// Of the processes of one command one speaks.
bool speaks(const Verb& verb, const Config& config) {
  if (!has_ranks(verb) || config.dry_run) return true;
  return config.rank_status.empty() && launch_of_environment().rank == 0;
}

// The command for the first line, which comes before anything that may take its time.
std::string words_shown(const std::vector<std::string>& words) {
  constexpr size_t longest = 100;
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  if (out.size() > longest) out = out.substr(0, longest) + " ...";
  return out;
}

}  // namespace

std::span<const Verb> verbs() {
  return table;
}

int dispatch(const std::vector<std::string>& words) {
  // Whatever the verb did, and also when it throws.
  struct AtEnd {
    ~AtEnd() { close_object_stores(); }
  } const at_end;
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    print(overview());
    return 0;
  }
  if (words[0] == "--version" || words[0] == "-V") {
    print(version_text());
    return 0;
  }
  size_t used = 0;
  const Verb* verb = find_verb(words, used);
  if (verb == nullptr && words.size() == 2 && (words[1] == "--help" || words[1] == "-h")) {
    const std::string text = parts_help(words[0]);
    if (!text.empty()) {
      print(text);
      return 0;
    }
  }
  if (verb == nullptr) unknown_verb(words);
  CommandLine line = split({words.begin() + static_cast<std::ptrdiff_t>(used), words.end()}, verb->reader);
  if (line.help) {
    print(verb_help_text(*verb));
    return 0;
  }
  Invocation call;
  call.command_line = "deltatune";
  call.words = words;
  for (const std::string& word : words) call.command_line += " " + word;
  if (verb->run == verb_help) {
    call.arguments = {words.begin() + 1, words.end()};
    return verb_help(call);
  }
  take_positional(*verb, line, call);
  call.loaded = load(call.config_file, line.flags, verb->reader);
  if (call.config().quiet) log::set_level(log::Level::warn);
  if (call.config().verbose) log::set_level(log::Level::debug);
  RemoteOptions remote;
  remote.retries = call.config().read_retries;
  remote.first_wait_s = call.config().read_retry_wait;
  remote.timeout_s = call.config().read_timeout;
  set_remote_options(remote);
  if (speaks(*verb, call.config())) log::info("deltatune {}: {}", build_info::version, words_shown(words));
  for (const std::string& notice : call.loaded.notices) log::info("{}", notice);
  if (verb->run == nullptr) {
    throw Error(ErrorKind::usage, format("{} is not part of this build", verb->name), "command line");
  }
  if (has_ranks(*verb)) return verb->run(call);  // a rank has a heartbeat of its own: its supervisor forks
  const Heartbeat heartbeat(verb->name);
  return verb->run(call);
}

int verb_help(const Invocation& call) {
  const std::vector<std::string>& words = call.arguments;
  if (words.empty()) {
    print(overview());
  } else if (words[0] == "--markdown") {
    print(options_markdown());
  } else if (words[0] == "--schema") {
    print(options_schema());
  } else if (words[0] == "--options") {
    const std::string key = words.size() > 1 ? words[1] : "";
    if (!key.empty() && find_option(key) == nullptr) {
      throw Error(ErrorKind::usage, format("unknown key {}", key), "command line",
                  "`deltatune help --options` lists all keys");
    }
    print(options_text(key));
  } else {
    size_t used = 0;
    const Verb* verb = find_verb(words, used);
    const std::string parts = words.size() == 1 ? parts_help(words[0]) : "";
    if (verb == nullptr && parts.empty()) unknown_verb(words);
    print(verb != nullptr ? verb_help_text(*verb) : parts);
  }
  return 0;
}

}  // namespace deltatune::cli
