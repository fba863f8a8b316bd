// Any bytes as a safetensors file: a table whose tensors lie inside the file, or an Error.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const deltatune::SafetensorsHeader header = deltatune::parse_safetensors(file, "input");
    size_t covered = header.data_begin;
    for (const deltatune::StoredTensor* tensor : deltatune::in_data_order(header.tensors)) {
      if (header.data_begin + tensor->begin != covered) std::abort();
      covered += tensor->size;
    }
    if (covered != size) std::abort();
  } catch (const deltatune::Error& error) {
    if (error.kind() == deltatune::ErrorKind::internal) throw;  // an assertion: a finding
  }
  return 0;
}
