// Help, reference documentation and schema, written from the tables.
#include "cli/help.h"

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "base/json.h"
#include "build_info.h"

namespace deltatune::cli {
namespace {

const Config defaults;

std::string flag_of(const Option& option) {
  std::string flag = "--" + option.flag_name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string join(const std::vector<std::string>& words, std::string_view before, std::string_view after) {
  std::string text;
  for (const std::string& word : words) {
    text += format("{}{}{}{}", text.empty() ? "" : ", ", before, word, after);
  }
  return text;
}

std::string limits_of(const Option& option) {
  if (option.unbuilt) return "only the default in this version";
  if (!option.later.empty()) return "not in this version: " + join(option.later, "", "");
  return "";
}

// `text` broken into lines of at most `width`, all but the first indented.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string result;
  size_t column = indent;
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const size_t length = end - start;
    if (column + length + 1 > width && column > indent) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      result += ' ';
      ++column;
    }
    result.append(text, start, length);
    column += length;
    start = end + 1;
  }
  return result;
}

std::string option_lines(const Option& option) {
  std::string about = format("{}; {}, default {}", option.doc, allowed(option), show(defaults, option));
  if (const std::string limit = limits_of(option); !limit.empty()) about += "; " + limit;
  if (!option.aliases.empty()) about += "; also " + join(option.aliases, "", "");
  if (!option.flag_alias.empty()) about += "; also --" + option.flag_alias;
  const std::string flag = "  " + flag_of(option);
  const std::string gap = flag.size() < 32 ? std::string(32 - flag.size(), ' ') : "\n" + std::string(32, ' ');
  return flag + gap + wrapped(about, 32, 110) + "\n";
}

std::string readers_of(const Option& option) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if ((verb.reader & option.readers) != 0) names.emplace_back(verb.name);
  }
  return join(names, "", "");
}

// Table cells may not hold a bar.
std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2))
    text.insert(at, "\\");
  return text;
}

json::Value scalar_schema(const Option& option, const char* type) {
  json::Value schema{json::Object{}};
  schema.set("type", type);
  if (option.low > -std::numeric_limits<double>::infinity()) {
    schema.set(option.low_open ? "exclusiveMinimum" : "minimum", option.low);
  }
  if (option.high < std::numeric_limits<double>::infinity()) schema.set("maximum", option.high);
  if (!option.choices.empty()) {
    json::Array values;
    for (const std::string& choice : option.choices) {
      const bool later = std::find(option.later.begin(), option.later.end(), choice) != option.later.end();
      if (!later) values.emplace_back(choice);
    }
    for (const auto& [from, to] : option.renamed) {
      if (std::find(option.later.begin(), option.later.end(), to) == option.later.end())
        values.emplace_back(from);
      if (from == "True") values.insert(values.end(), {json::Value(true), json::Value(false)});
    }
    schema = json::Value(json::Object{});
    schema.set("enum", values);
  }
  return schema;
}

json::Value option_schema(const Option& option) {
  const size_t kind = option.member.index();
  json::Value schema;
  if (kind == 0) schema = scalar_schema(option, "boolean");
  if (kind == 1) schema = scalar_schema(option, "integer");
  if (kind == 2) schema = scalar_schema(option, "number");
  if (kind == 3) {
    schema = scalar_schema(option, "string");
    if (option.choices.empty() && !option.renamed.empty()) {
      schema.set("type", json::Array{json::Value("string"), json::Value("boolean")});
    }
  }
  if (kind == 4) {
    json::Value list{json::Object{}};
    list.set("type", "array");
    json::Value item = scalar_schema(option, "string");
    if (option.name == "dataset") {  // {path, weight}, see cli/weighted_entries.h
      const json::Value entry =
          json::Object{{"type", "object"},
                       {"properties", json::Object{{"path", json::Object{{"type", "string"}}},
                                                   {"weight", json::Object{{"type", "number"}}}}},
                       {"required", json::Array{json::Value("path")}},
                       {"additionalProperties", false}};
      item = json::Object{{"anyOf", json::Array{item, entry}}};
    }
    list.set("items", item);
    schema.set("anyOf", json::Array{scalar_schema(option, "string"), list});
  }
  if (kind == 5) schema.set("type", "object");
  schema.set("description", option.doc);
  return schema;
}

}  // namespace

std::string overview() {
  std::string text =
      "deltatune fine-tunes Qwen3.5, 3.6 and 3.8 models, from a Hugging Face checkpoint to a Hugging Face "
      "checkpoint.\n\n";
  for (const Verb& verb : verbs()) {
    const std::string call = format("  deltatune {} {}", verb.name, verb.argument);
    const std::string alias = verb.alias != nullptr ? format(" (alias: {})", verb.alias) : "";
    text += format("{:<38} {}{}\n", call, verb.summary, alias);
  }
  text +=
      "\nEach takes --help. Keys of the YAML file are flags too: learning_rate: 1e-5 is --learning-rate "
      "1e-5.\n";
  return text;
}

std::string verb_help_text(const Verb& verb) {
  std::string text =
      format("usage: deltatune {} {} [--key value]...\n\n{}\n", verb.name, verb.argument, verb.summary);
  std::string group;
  for (const Option& option : options()) {
    if ((option.readers & verb.reader) == 0) continue;
    if (option.group != group) text += format("\n{}\n", option.group);
    group = option.group;
    text += option_lines(option);
  }
  return text;
}

std::string options_text(const std::string& key) {
  std::string text;
  std::string group;
  const Option* wanted = key.empty() ? nullptr : find_option(key);
  for (const Option& option : options()) {
    if (!key.empty() && &option != wanted) continue;
    if (key.empty() && option.group != group)
      text += format("{}{}\n", group.empty() ? "" : "\n", option.group);
    group = option.group;
    text += option_lines(option);
  }
  return text;
}

std::string options_markdown() {
  std::string text =
      "# Options\n\n"
      "Generated by `deltatune help --markdown` from the options table (`src/cli/options.cpp`); do not "
      "edit.\n\n"
      "Every key may stand in the YAML file or on the command line: `learning_rate: 1e-5` is "
      "`--learning-rate 1e-5`,\n"
      "`master_weights: false` is `--no-master-weights`. A flag beats the file, the file beats the default. "
      "An unknown\n"
      "key stops with exit code 2. `config.resolved.yaml` in the output folder lists what was used and where "
      "it came\n"
      "from.\n";
  std::string group;
  for (const Option& option : options()) {
    if (option.group != group) {
      text += format("\n## {}{}\n\n", option.group, option.flag_only ? " (flags only)" : "");
      text += "| key | values | default | meaning | read by |\n|---|---|---|---|---|\n";
    }
    group = option.group;
    std::string about = option.doc;
    if (const std::string limit = limits_of(option); !limit.empty()) about += "; " + limit;
    if (!option.aliases.empty()) about += "; also " + join(option.aliases, "`", "`");
    if (!option.flag_alias.empty()) about += format("; also `--{}`", option.flag_alias);
    const std::string key = option.flag_only ? flag_of(option) : option.name;
    text += format("| `{}` | {} | `{}` | {} | {} |\n", key, cell(allowed(option)),
                   cell(show(defaults, option)), cell(about), readers_of(option));
  }
  return text;
}

std::string options_schema() {
  json::Value properties{json::Object{}};
  for (const Option& option : options()) {
    if (option.flag_only) continue;
    properties.set(option.name, option_schema(option));
    for (const std::string& alias : option.aliases) properties.set(alias, option_schema(option));
  }
  json::Value schema;
  schema.set("$schema", "https://json-schema.org/draft/2020-12/schema");
  schema.set("title", "deltatune configuration");
  schema.set("type", "object");
  schema.set("properties", properties);
  return json::dump(schema, 2) + "\n";
}

std::string version_text() {
  return format("deltatune {}\ncommit    {}\ncompiler  {}\nCUDA      {}\n", build_info::version,
                build_info::commit, build_info::compiler, build_info::cuda_archs);
}

}  // namespace deltatune::cli
