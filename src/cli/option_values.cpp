// Values of options: from YAML nodes into Config's members, with range and choice checks, and back to text.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/format.h"
#include "base/suggest.h"
#include "cli/options.h"

namespace deltatune::cli {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

// One assignment: knows how to complain.
struct Assigner {
  const Option& option;
  const std::string& where;

  [[noreturn]] void wrong(const std::string& found, std::string fix = {}) const {
    throw Error(
        ErrorKind::usage, format("{} must be {}, found {}", option.name, allowed(option), found), where,
        fix.empty() ? format("`deltatune help --options {}` explains the key", option.name) : std::move(fix));
  }
  [[noreturn]] void too_early(const std::string& found) const {
    throw Error(ErrorKind::usage,
                format("{}: {} is not supported in this version of deltatune", option.name, found), where,
                format("leave {} out, or give {}", option.name, supported()));
  }
  std::string supported() const {
    std::vector<std::string> values;
    for (const std::string& choice : option.choices) {
      if (std::find(option.later.begin(), option.later.end(), choice) == option.later.end())
        values.push_back(choice);
    }
    return values.empty() ? format("its default {}", show(Config{}, option)) : join(values, ", ");
  }

  const std::string& scalar(const yaml::Node& node) const {
    if (node.kind != yaml::Kind::scalar) wrong(yaml::kind_name(node.kind));
    return node.text;
  }

  std::string text(const yaml::Node& node) const {
    std::string value = scalar(node);
    for (const auto& [from, to] : option.renamed) {
      if (value == from) {
        value = to;
        break;
      }
    }
    if (option.choices.empty()) return value;
    if (std::find(option.choices.begin(), option.choices.end(), value) == option.choices.end()) {
      const std::string close = nearest(value, option.choices);
      wrong(json::quote(node.text), close.empty() ? "" : format("did you mean {}?", close));
    }
    if (std::find(option.later.begin(), option.later.end(), value) != option.later.end()) too_early(value);
    return value;
  }

  bool boolean(const yaml::Node& node) const {
    std::string word = scalar(node);
    std::transform(word.begin(), word.end(), word.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    if (word == "true" || word == "yes" || word == "on") return true;
    if (word == "false" || word == "no" || word == "off") return false;
    wrong(json::quote(node.text));
  }

  void check_range(double value, const std::string& found) const {
    if (value < option.low || value > option.high || (option.low_open && value == option.low)) wrong(found);
  }

  int64_t integer(const yaml::Node& node) const {
    const std::string& word = scalar(node);
    int64_t value = 0;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (code != std::errc() || end != word.data() + word.size()) wrong(json::quote(word));
    check_range(static_cast<double>(value), word);
    return value;
  }

  double number(const yaml::Node& node) const {
    const std::string& word = scalar(node);
    const char* first = word.data() + (word.starts_with('+') ? 1 : 0);
    double value = 0;
    const auto [end, code] = std::from_chars(first, word.data() + word.size(), value);
    if (code != std::errc() || end != word.data() + word.size() || !std::isfinite(value))
      wrong(json::quote(word));
    check_range(value, word);
    return value;
  }

  std::vector<std::string> list(const yaml::Node& node) const {
    std::vector<std::string> values;
    if (node.kind == yaml::Kind::sequence) {
      for (const yaml::Node& item : node.items) {
        if (item.kind != yaml::Kind::scalar)
          wrong(format("a list that holds {}", yaml::kind_name(item.kind)));
        values.push_back(text(item));
      }
    } else {
      values.push_back(text(node));
    }
    const bool none =
        std::find(values.begin(), values.end(), "none") != values.end() && !option.choices.empty();
    if (none) values.clear();
    return values;
  }

  std::map<std::string, std::string> map(const yaml::Node& node) const {
    if (node.kind != yaml::Kind::map) wrong(yaml::kind_name(node.kind));
    std::map<std::string, std::string> values;
    for (const auto& [key, value] : node.map) values[key] = json::dump(yaml::to_json(value));
    return values;
  }
};

// A number as YAML reads it back: 1e-05, 0.5, 1.0.
std::string show_number(double value) {
  char buffer[40];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// Plain where YAML reads the very same text back, else a JSON string, which YAML reads too.
std::string show_text(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '/' || c == '-';
  });
  return plain && text[0] != '-' && text[0] != '.' ? text : json::quote(text);
}

}  // namespace

void assign(Config& config, const Option& option, const yaml::Node& value, const std::string& where) {
  if (value.kind == yaml::Kind::null) return;
  const std::string& word = value.text;
  if (value.kind == yaml::Kind::scalar && !value.quoted && (word == "null" || word == "~" || word == "None"))
    return;
  const Assigner assigner{option, where};
  std::visit(
      Overloaded{
          [&](bool Config::*member) { config.*member = assigner.boolean(value); },
          [&](int64_t Config::*member) { config.*member = assigner.integer(value); },
          [&](double Config::*member) { config.*member = assigner.number(value); },
          [&](std::string Config::*member) { config.*member = assigner.text(value); },
          [&](std::vector<std::string> Config::*member) { config.*member = assigner.list(value); },
          [&](std::map<std::string, std::string> Config::*member) { config.*member = assigner.map(value); },
      },
      option.member);
  if (option.unbuilt && show(config, option) != show(Config{}, option))
    assigner.too_early(show(config, option));
}

std::string show(const Config& config, const Option& option) {
  return std::visit(Overloaded{
                        [&](bool Config::*member) { return std::string(config.*member ? "true" : "false"); },
                        [&](int64_t Config::*member) { return std::to_string(config.*member); },
                        [&](double Config::*member) { return show_number(config.*member); },
                        [&](std::string Config::*member) { return show_text(config.*member); },
                        [&](std::vector<std::string> Config::*member) {
                          std::vector<std::string> items;
                          for (const std::string& item : config.*member) items.push_back(show_text(item));
                          return "[" + join(items, ", ") + "]";
                        },
                        [&](std::map<std::string, std::string> Config::*member) {
                          std::vector<std::string> items;
                          for (const auto& [key, value] : config.*member)
                            items.push_back(show_text(key) + ": " + value);
                          return "{" + join(items, ", ") + "}";
                        },
                    },
                    option.member);
}

std::string allowed(const Option& option) {
  const auto range = [&](const char* noun, const auto& print) {
    const bool low = std::isfinite(option.low);
    const bool high = std::isfinite(option.high);
    if (low && high && option.low_open)
      return format("{} above {} and at most {}", noun, print(option.low), print(option.high));
    if (low && high) return format("{} from {} to {}", noun, print(option.low), print(option.high));
    if (low && option.low_open) return format("{} above {}", noun, print(option.low));
    if (low) return format("{} of at least {}", noun, print(option.low));
    return std::string(noun);
  };
  const auto whole = [](double value) { return std::to_string(static_cast<int64_t>(value)); };
  const auto short_number = [](double value) { return format("{:g}", value); };
  const std::string choice = option.choices.empty() ? "" : join(option.choices, ", ");
  return std::visit(Overloaded{
                        [&](bool Config::*) { return std::string("true or false"); },
                        [&](int64_t Config::*) { return range("a whole number", whole); },
                        [&](double Config::*) { return range("a number", short_number); },
                        [&](std::string Config::*) { return choice.empty() ? "a text" : "one of " + choice; },
                        [&](std::vector<std::string> Config::*) {
                          return choice.empty() ? "a text or a list of texts" : "a list of " + choice;
                        },
                        [&](std::map<std::string, std::string> Config::*) {
                          return std::string("a map of names to values");
                        },
                    },
                    option.member);
}

}  // namespace deltatune::cli
