// YAML as configuration files use it: a small ordered tree of ours with line numbers; yaml-cpp reads it.
//
// Refused, each with its line: anchors and aliases (a few bytes of them can expand to gigabytes), explicit
// tags, several documents, duplicate keys, keys that are not scalars, more than 32 levels, more than 1 MiB.
// Scalars keep their text; what "yes" or "1e-5" means is decided by whoever knows the wanted type.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace deltatune::yaml {

enum class Kind { null, scalar, sequence, map };

struct Member;

/// One node. Only the members of its kind are filled.
struct Node {
  Kind kind = Kind::null;
  int line = 0;             ///< 1-based; of a map's value, the line of its key
  std::string text;         ///< scalar: the characters after unquoting
  bool quoted = false;      ///< scalar: was quoted or a block, so it is a string
  std::vector<Node> items;  ///< sequence
  std::vector<Member> map;  ///< map, in file order, keys unique
};

/// Key and value of a map. Not a std::pair: that cannot be named while Node is incomplete.
struct Member {
  Member(std::string key, Node value) : first(std::move(key)), second(std::move(value)) {}
  std::string first;
  Node second;
};

/// "nothing", "a single value", "a list" or "a map": for messages.
const char* kind_name(Kind kind);

/// Parses one document; empty text is a null node. `where` names the source in errors ("cfg.yaml"), which
/// read "cfg.yaml:12". Throws Error{usage}.
Node parse(std::string_view text, std::string_view where);

/// The node as JSON: plain scalars become null, booleans, integers and floats as YAML 1.2's core schema reads
/// them, everything else strings.
json::Value to_json(const Node& node);

}  // namespace deltatune::yaml
