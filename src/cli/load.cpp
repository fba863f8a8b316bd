// Layers of configuration: defaults, one YAML file, flags.
#include "cli/load.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/suggest.h"
#include "cli/foreign.h"
#include "cli/weighted_entries.h"

namespace deltatune::cli {
namespace {

std::string with_underscores(std::string_view word) {
  std::string name(word);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool is_list(const Option& option) {
  return std::holds_alternative<std::vector<std::string> Config::*>(option.member);
}
bool is_map(const Option& option) {
  return std::holds_alternative<std::map<std::string, std::string> Config::*>(option.member);
}
bool is_switch(const Option& option) {
  return std::holds_alternative<bool Config::*>(option.member);
}

// The row a flag of this verb means: `plan --device h200` is device_card, elsewhere it is device.
const Option* find_flag(std::string_view name, unsigned reader) {
  for (const Option& option : options()) {
    if ((option.readers & reader) == 0 || name.empty()) continue;
    if (option.flag_name == name || option.flag_alias == name) return &option;
  }
  return find_option(name);
}

yaml::Node scalar(std::string text, bool quoted = false) {
  yaml::Node node;
  node.kind = yaml::Kind::scalar;
  node.text = std::move(text);
  node.quoted = quoted;
  return node;
}

// The Config under construction.
class Loader {
 public:
  Loader(unsigned reader, bool skip_foreign) : reader_(reader), skip_foreign_(skip_foreign) {}

  // `name` is the key as written; `kind` "file" or "flag". Each of the two layers sets a key once.
  void set(const std::string& name, const yaml::Node& value, const std::string& kind,
           const std::string& where) {
    const Option* option = kind == "flag" ? find_flag(name, reader_) : find_option(name);
    if (option == nullptr || (option->flag_only && kind == "file" && option->name != name)) {
      set_foreign(name, value, kind, where);
      return;
    }
    if (option->flag_only && kind == "file") {
      throw Error(ErrorKind::usage, format("{} belongs on the command line, not into a file", name), where,
                  format("remove it and pass --{}", option->flag_name));
    }
    if (kind == "flag" && (option->readers & reader_) == 0) {
      throw Error(ErrorKind::usage, format("this command does not read {}", option->name), where,
                  "its --help lists what it reads");
    }
    const bool alias = option->name != name && option->flag_name != name && option->flag_alias != name;
    if (alias) notice(format("{} is read as {}", name, option->name));
    put(*option, value, kind, where, alias ? name : "");
  }

  Loaded finish() {
    if (rows_ > 0) {
      const Option& option = *find_option("max_tokens");
      assign(loaded_.config, option, scalar(std::to_string(rows_ * loaded_.config.max_length)), rows_where_);
    }
    return std::move(loaded_);
  }

 private:
  void notice(std::string text) {
    if (std::find(loaded_.notices.begin(), loaded_.notices.end(), text) == loaded_.notices.end()) {
      loaded_.notices.push_back(std::move(text));
    }
  }

  void claim(const std::string& name, const std::string& kind, const std::string& where) {
    const auto [first, added] = claimed_.try_emplace(kind + " " + name, where);
    if (!added) {
      throw Error(ErrorKind::usage, format("{} is set twice", name),
                  format("{} and {}", first->second, where), "keep one of them");
    }
    if (name == "max_tokens") rows_ = 0;
  }

  void put(const Option& option, const yaml::Node& value, const std::string& kind, const std::string& where,
           const std::string& alias) {
    if (option.member == Member(&Config::dataset)) {
      if (const std::optional<WeightedEntries> entries = weighted_entries(value, where)) {
        put(option, entries->paths, kind, where, alias);
        put(*find_option("dataset_weights"), entries->weights, kind, where, "dataset");
        return;
      }
    }
    claim(option.name, kind, where);
    assign(loaded_.config, option, value, where);
    if (value.kind != yaml::Kind::null) loaded_.origins[option.name] = {format("{} {}", kind, where), alias};
  }

  void set_foreign(const std::string& name, const yaml::Node& value, const std::string& kind,
                   const std::string& where) {
    const std::optional<Meaning> meaning = foreign_meaning(name, value, where);
    if (!meaning) unknown(name, where);
    if (const auto* translated = std::get_if<Translated>(&*meaning)) {
      notice(translated->notice);
      put(*find_option(translated->key), translated->value, kind, where, name);
    } else if (const auto* rows = std::get_if<TokensFromRows>(&*meaning)) {
      notice(rows->notice);
      claim("max_tokens", kind, where);
      rows_ = rows->rows;
      rows_where_ = where;
      loaded_.origins["max_tokens"] = {format("{} {}", kind, where), name};
    } else if (const auto* harmless = std::get_if<Harmless>(&*meaning)) {
      notice(harmless->notice);
    } else if (skip_foreign_) {
      notice(format("{} is ignored: {}", name, std::get<Foreign>(*meaning).reason));
    } else {
      throw Error(ErrorKind::usage,
                  format("{} is a key of another framework: {}", name, std::get<Foreign>(*meaning).reason),
                  where, "remove it, or pass --ignore-foreign-keys");
    }
  }

  [[noreturn]] void unknown(const std::string& name, const std::string& where) const {
    std::vector<std::string> known;
    for (const Option& option : options()) {
      known.push_back(option.name);
      known.insert(known.end(), option.aliases.begin(), option.aliases.end());
    }
    const std::string close = nearest(name, known);
    throw Error(
        ErrorKind::usage, format("unknown key {}", name), where,
        close.empty() ? "`deltatune help --options` lists all keys" : format("did you mean {}?", close));
  }

  unsigned reader_;
  bool skip_foreign_;
  Loaded loaded_;
  std::map<std::string, std::string> claimed_;  // "file learning_rate" -> where
  int64_t rows_ = 0;                            // of per_device_train_batch_size; 0: not given or overridden
  std::string rows_where_;
};

// The value of a flag as the YAML node that would say the same.
yaml::Node flag_value(const Option* option, const CommandLine::Flag& flag) {
  const bool structured = option != nullptr && (is_list(*option) || is_map(*option));
  if (!structured) return scalar(flag.value);
  if (flag.value.starts_with('[') || flag.value.starts_with('{'))
    return yaml::parse(flag.value, flag.spelling);
  yaml::Node node;
  if (is_map(*option)) {
    const size_t equals = flag.value.find('=');
    if (equals == std::string::npos) return scalar(flag.value, true);
    node.kind = yaml::Kind::map;
    node.map.emplace_back(flag.value.substr(0, equals), scalar(flag.value.substr(equals + 1)));
    return node;
  }
  node.kind = yaml::Kind::sequence;
  std::string_view rest = flag.value;
  while (!option->choices.empty() && rest.find(',') != std::string_view::npos) {
    node.items.push_back(scalar(std::string(rest.substr(0, rest.find(',')))));
    rest.remove_prefix(rest.find(',') + 1);
  }
  node.items.push_back(scalar(std::string(rest)));
  return node;
}

// Flags of lists and maps may be repeated: the values join, in order.
void join_values(yaml::Node& into, yaml::Node&& more) {
  for (yaml::Node& item : more.items) into.items.push_back(std::move(item));
  for (auto& member : more.map) into.map.push_back(std::move(member));
}

void add_flags(Loader& loader, const std::vector<CommandLine::Flag>& flags, unsigned reader) {
  std::set<std::string> done;
  for (size_t i = 0; i < flags.size(); ++i) {
    const CommandLine::Flag& flag = flags[i];
    const Option* option = find_flag(flag.name, reader);
    yaml::Node value = flag_value(option, flag);
    if (option != nullptr && (is_list(*option) || is_map(*option))) {
      if (!done.insert(option->name).second) continue;
      for (size_t k = i + 1; k < flags.size(); ++k) {
        if (find_flag(flags[k].name, reader) == option) join_values(value, flag_value(option, flags[k]));
      }
    }
    loader.set(flag.name, value, "flag", flag.spelling);
  }
}

bool is_word_of_truth(const std::string& word) {
  return word == "true" || word == "false" || word == "True" || word == "False";
}

// Texts that stand for a switch too: `--resume-from-checkpoint` alone means true.
bool means_true_alone(const Option& option) {
  return std::any_of(option.renamed.begin(), option.renamed.end(),
                     [](const auto& pair) { return pair.first == "True"; });
}

// The flag at words[i]; moves i to its value when that is the next word.
CommandLine::Flag read_flag(const std::vector<std::string>& words, size_t& i, unsigned reader) {
  const size_t equals = words[i].find('=');
  CommandLine::Flag flag;
  flag.spelling = words[i].substr(0, equals);
  flag.name = with_underscores(flag.spelling.substr(2));
  if (equals != std::string::npos) {
    flag.value = words[i].substr(equals + 1);
    return flag;
  }
  const bool bare = i + 1 >= words.size() || words[i + 1].starts_with("--");
  const Option* option = find_flag(flag.name, reader);
  if (option == nullptr && flag.name.starts_with("no_")) {
    const std::string positive = flag.name.substr(3);
    const Option* negated = find_flag(positive, reader);
    if (negated != nullptr ? is_switch(*negated) : foreign_switch(positive)) {
      flag.name = positive;
      flag.value = "false";
      return flag;
    }
  }
  if (option != nullptr ? is_switch(*option) : foreign_switch(flag.name)) {
    flag.value = !bare && is_word_of_truth(words[i + 1]) ? words[++i] : "true";
  } else if (!bare) {
    flag.value = words[++i];
  } else if (option == nullptr || means_true_alone(*option)) {
    flag.value = "true";
  } else {
    throw Error(ErrorKind::usage, format("{} needs a value", flag.spelling), "command line",
                format("{} takes {}", flag.spelling, allowed(*option)));
  }
  return flag;
}

}  // namespace

CommandLine split(const std::vector<std::string>& words, unsigned reader) {
  CommandLine line;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      line.positional.insert(line.positional.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                             words.end());
      break;
    }
    if (word == "-h" || word == "--help") {
      line.help = true;
    } else if (word == "-q" || word == "-v") {
      line.flags.push_back({word == "-q" ? "quiet" : "verbose", "true", word});
    } else if (word.starts_with("--")) {
      line.flags.push_back(read_flag(words, i, reader));
    } else if (word.starts_with('-') && word.size() > 1) {
      throw Error(ErrorKind::usage, format("unknown flag {}", word), "command line",
                  "short flags are -h, -q and -v; all others start with --");
    } else {
      line.positional.push_back(word);
    }
  }
  return line;
}

Loaded load_text(std::string_view text, const std::string& where, const std::vector<CommandLine::Flag>& flags,
                 unsigned reader) {
  const bool skip_foreign = std::any_of(flags.begin(), flags.end(), [](const CommandLine::Flag& flag) {
    return flag.name == "ignore_foreign_keys" && flag.value != "false";
  });
  Loader loader(reader, skip_foreign);
  const yaml::Node root = yaml::parse(text, where);
  if (root.kind != yaml::Kind::map && root.kind != yaml::Kind::null) {
    throw Error(ErrorKind::usage,
                format("a configuration is a map of keys to values, found {}", yaml::kind_name(root.kind)),
                format("{}:{}", where, root.line), "write lines like `learning_rate: 1e-5`");
  }
  for (const auto& [key, value] : root.map)
    loader.set(key, value, "file", format("{}:{}", where, value.line));
  add_flags(loader, flags, reader);
  return loader.finish();
}

Loaded load(const std::string& file, const std::vector<CommandLine::Flag>& flags, unsigned reader) {
  if (file.empty()) return load_text("", "", flags, reader);
  std::error_code code;
  if (!fs::is_regular_file(file, code)) {
    throw Error(ErrorKind::usage, format("there is no configuration file {}", file), "command line",
                "give the path of a YAML file");
  }
  return load_text(read_file(file), file, flags, reader);
}

std::string resolved_yaml(const Loaded& loaded) {
  std::string text =
      "# Every key with its final value and where it came from. This file can be used as a configuration.\n";
  std::string group;
  for (const Option& option : options()) {
    if (option.flag_only) continue;
    if (option.group != group) text += format("\n# {}\n", option.group);
    group = option.group;
    const auto origin = loaded.origins.find(option.name);
    std::string comment = "default";
    if (origin != loaded.origins.end()) {
      comment = origin->second.source;
      if (!origin->second.alias.empty()) comment += format(", alias {}", origin->second.alias);
    }
    std::replace_if(
        comment.begin(), comment.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
    text += format("{:<40} # {}\n", format("{}: {}", option.name, show(loaded.config, option)), comment);
  }
  return text;
}

}  // namespace deltatune::cli
