// `dataset: [a.jsonl, {path: b.parquet, weight: 0.5}]`: entries with their weights beside them, which are the
// same as a plain list and dataset_weights.
#pragma once

#include <optional>
#include <string>

#include "base/yaml.h"

namespace deltatune::cli {

struct WeightedEntries {
  yaml::Node paths;    ///< a list of texts
  yaml::Node weights;  ///< a list of numbers, one for each
};

/// The two lists of a `dataset` value in which an entry is a map; nullopt where none is. An entry without
/// weight has 1. Throws Error{usage} for an entry without a path, and for members other than path and weight.
std::optional<WeightedEntries> weighted_entries(const yaml::Node& value, const std::string& where);

}  // namespace deltatune::cli
