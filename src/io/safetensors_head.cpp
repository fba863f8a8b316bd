// Offsets and header text of new safetensors files.
#include "io/safetensors_head.h"

#include <set>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"

namespace deltatune {

std::vector<StoredTensor> place_tensors(std::span<const PlannedTensor> plan) {
  std::vector<StoredTensor> out;
  std::set<std::string_view> names;
  size_t at = 0;
  for (const PlannedTensor& planned : plan) {
    DELTATUNE_ASSERT(names.insert(planned.name).second);
    const std::optional<size_t> size = stored_bytes(planned.dtype, planned.shape);
    DELTATUNE_ASSERT(size.has_value());
    out.push_back({planned.name, planned.dtype, planned.shape, at, *size});
    at += *size;
  }
  return out;
}

std::string safetensors_head(std::span<const StoredTensor> tensors, const Metadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (size_t i = 0; i < metadata.size(); ++i) {
      text += (i ? "," : "") + json::quote(metadata[i].first) + ":" + json::quote(metadata[i].second);
    }
    text += "}";
  }
  for (const StoredTensor& tensor : tensors) {
    if (text.size() > 1) text += ",";
    text += json::quote(tensor.name) + ":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i) text += (i ? "," : "") + std::to_string(tensor.shape[i]);
    text += format("],\"data_offsets\":[{},{}]}}", tensor.begin, tensor.begin + tensor.size);
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string head(8, '\0');
  for (size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return head + text;
}

}  // namespace deltatune
