// Keys of other fine-tuning frameworks that are not options here: some translate into an option, some are
// accepted at the only value that means what deltatune does anyway, the rest are explained and refused.
// (Plain renamings are aliases in the options table.)
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/yaml.h"

namespace deltatune::cli {

/// `key: value` here, with one sentence for the user.
struct Translated {
  std::string key;
  yaml::Node value;
  std::string notice;
};
/// max_tokens = rows * max_length, known only when all keys are read (per_device_train_batch_size).
struct TokensFromRows {
  int64_t rows;
  std::string notice;
};
/// No effect, and why that is right.
struct Harmless {
  std::string notice;
};
/// Refused, unless the user ignores foreign keys.
struct Foreign {
  std::string reason;
};

using Meaning = std::variant<Translated, TokensFromRows, Harmless, Foreign>;

/// What a key that is no option means; nothing when no framework known here has it. Throws Error{usage} when
/// a translated key has a value that cannot be translated.
std::optional<Meaning> foreign_meaning(std::string_view key, const yaml::Node& value,
                                       const std::string& where);

/// Is the key a true-or-false switch of another framework, so that its flag may stand without a value?
bool foreign_switch(std::string_view key);

}  // namespace deltatune::cli
