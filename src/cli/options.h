// The one table of options: a row per member of Config. From it come the YAML loader, the flags, --help,
// docs/reference/options.md, config.resolved.yaml and the JSON schema; there is no second list of keys.
//
// A row names its member, documents it, and says which values are allowed and which verbs read it. Defaults
// are the member initialisers of Config.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/yaml.h"
#include "train/config.h"

namespace deltatune::cli {

/// Verbs as bits: who reads an option.
namespace reader {
inline constexpr unsigned train = 1;
inline constexpr unsigned plan = 2;
inline constexpr unsigned eval = 4;
inline constexpr unsigned generate = 8;
inline constexpr unsigned data_show = 16;
inline constexpr unsigned parity = 32;
inline constexpr unsigned inspect = 64;
inline constexpr unsigned doctor = 128;
inline constexpr unsigned report = 256;
inline constexpr unsigned bench_op = 512;
inline constexpr unsigned bench_step = 1024;
inline constexpr unsigned bench_ladder = 1U << 18;
inline constexpr unsigned advise = 1U << 17;
inline constexpr unsigned profile = 1U << 16;  ///< beside train: all that it reads
inline constexpr unsigned bench = bench_op | bench_step | bench_ladder;
inline constexpr unsigned data_stats = 2048;
inline constexpr unsigned data_pack = 4096;
inline constexpr unsigned data_check = 8192;
inline constexpr unsigned data_render = 16384;
inline constexpr unsigned data_tokenize = 32768;
inline constexpr unsigned data =
    data_show | data_stats | data_pack | data_check | data_render | data_tokenize;
inline constexpr unsigned every = (1U << 19) - 1;
}  // namespace reader

using Member = std::variant<bool Config::*, int64_t Config::*, double Config::*, std::string Config::*,
                            std::vector<std::string> Config::*, std::map<std::string, std::string> Config::*>;

/// One row. The setters return *this, so that a row reads as one sentence.
struct Option {
  std::string name;  ///< YAML key; the flag is the same with '-' for '_'
  Member member;
  std::string doc;  ///< one line, no full stop
  std::string group;
  unsigned readers = 0;    ///< bits of namespace reader
  std::string flag_name;   ///< flag where it differs from the key, with '_'
  std::string flag_alias;  ///< a second spelling of the flag that is no key of a file
  bool flag_only = false;
  std::vector<std::string> aliases;
  std::vector<std::string> choices;                          ///< allowed strings (of each item, for lists)
  std::vector<std::string> later;                            ///< known values that this version refuses
  bool unbuilt = false;                                      ///< anything but the default is refused
  std::vector<std::pair<std::string, std::string>> renamed;  ///< other spellings of a value -> ours
  double low = 0, high = 0;                                  ///< numbers: allowed range, both ends included
  bool low_open = false;                                     ///< `low` itself is not allowed

  Option& alias(std::vector<std::string> names);
  Option& one_of(std::vector<std::string> values);
  Option& not_yet(std::vector<std::string> values);
  Option& not_yet();
  Option& spelled(std::vector<std::pair<std::string, std::string>> pairs);
  Option& range(double lowest, double highest);
  Option& above(double lowest);
  Option& at_least(double lowest);
  Option& at_most(double highest);
  Option& command_line();
  Option& flag(std::string spelling);
  Option& also_flag(std::string spelling);
};

/// All rows, in the order of help and documentation.
const std::vector<Option>& options();

/// The row with this key or alias ('_' spelling), or nullptr. Flag-only rows are found too.
const Option* find_option(std::string_view key);

/// Sets the row's member from a YAML value. `where` names the place ("cfg.yaml:12"). Lists accept a single
/// value; maps keep JSON texts. A null node leaves the default. Throws Error{usage} naming key, place and
/// what is allowed.
void assign(Config& config, const Option& option, const yaml::Node& value, const std::string& where);

/// The member's value as YAML flow text ("1e-05", "[a, b]", "{k: 1}", "\"\"").
std::string show(const Config& config, const Option& option);

/// "a number from 0 to 1", "one of a, b", "a list of texts": what assign() accepts.
std::string allowed(const Option& option);

}  // namespace deltatune::cli
