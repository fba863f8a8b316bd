// Bytes as a YAML file: a tree within its limits, whose JSON form dumps and parses back, or an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/yaml.h"

using namespace deltatune;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const json::Value value = yaml::to_json(yaml::parse(text, "fuzz.yaml"));
    const std::string once = json::dump(value);
    DELTATUNE_ASSERT(json::dump(json::parse(once, "dumped")) == once);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
  }
  return 0;
}
