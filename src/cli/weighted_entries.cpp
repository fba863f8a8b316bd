// Taking entries apart.
#include "cli/weighted_entries.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "base/suggest.h"

namespace deltatune::cli {
namespace {

yaml::Node one() {
  yaml::Node node;
  node.kind = yaml::Kind::scalar;
  node.text = std::string(1, '1');
  return node;
}

void add_entry(const yaml::Node& entry, const std::string& where, WeightedEntries& out) {
  if (entry.kind != yaml::Kind::map) {
    out.paths.items.push_back(entry);
    out.weights.items.push_back(one());
    return;
  }
  const yaml::Node* path = nullptr;
  yaml::Node weight = one();
  for (const auto& [key, value] : entry.map) {
    if (key == "path") {
      path = &value;
    } else if (key == "weight") {
      weight = value;
    } else {
      const std::vector<std::string> known = {"path", "weight"};
      const std::string close = nearest(key, known);
      throw Error(ErrorKind::usage, format("an entry of dataset has no {}", key), where,
                  close.empty()
                      ? "write {path: FILE, weight: NUMBER}; splits and schemas are keys of their own"
                      : format("did you mean {}?", close));
    }
  }
  if (path == nullptr) {
    throw Error(ErrorKind::usage, "an entry of dataset without a path", where,
                "write {path: FILE, weight: NUMBER}");
  }
  out.paths.items.push_back(*path);
  out.weights.items.push_back(weight);
}

}  // namespace

std::optional<WeightedEntries> weighted_entries(const yaml::Node& value, const std::string& where) {
  const bool is_list = value.kind == yaml::Kind::sequence;
  const auto is_map = [](const yaml::Node& node) { return node.kind == yaml::Kind::map; };
  if (!is_map(value) && !(is_list && std::any_of(value.items.begin(), value.items.end(), is_map)))
    return std::nullopt;
  WeightedEntries out;
  out.paths.kind = out.weights.kind = yaml::Kind::sequence;
  out.paths.line = out.weights.line = value.line;
  if (!is_list) {
    add_entry(value, where, out);
    return out;
  }
  for (const yaml::Node& entry : value.items) add_entry(entry, where, out);
  return out;
}

}  // namespace deltatune::cli
