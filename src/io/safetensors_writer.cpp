// Headers and bytes of new safetensors files.
#include "io/safetensors_writer.h"

#include <set>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"

namespace deltatune {
namespace {

std::string make_head(std::span<const StoredTensor> tensors, const Metadata& metadata) {
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

}  // namespace

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::span<const PlannedTensor> plan,
                                     const Metadata& metadata)
    : path_(path), temporary_(path.string() + ".tmp") {
  std::set<std::string_view> names;
  for (const PlannedTensor& planned : plan) {
    DELTATUNE_ASSERT(names.insert(planned.name).second);
    const std::optional<size_t> size = stored_bytes(planned.dtype, planned.shape);
    DELTATUNE_ASSERT(size.has_value());
    tensors_.push_back({planned.name, planned.dtype, planned.shape, total_, *size});
    total_ += *size;
  }
  const std::string head = make_head(tensors_, metadata);
  start(std::as_bytes(std::span(head)));
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const SafetensorsFile& source)
    : path_(path), temporary_(path.string() + ".tmp") {
  for (const StoredTensor* tensor : in_data_order(source.tensors())) {
    tensors_.push_back(*tensor);
    total_ += tensor->size;
  }
  start(source.head());
}

void SafetensorsWriter::start(std::span<const std::byte> head) {
  file_ = std::make_unique<FileWriter>(temporary_);
  try {
    file_->write(head);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary_, ignored);
    throw;
  }
  hasher_.update(head);
  head_size_ = head.size();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!file_) return;
  file_.reset();
  std::error_code ignored;
  fs::remove(temporary_, ignored);
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  DELTATUNE_ASSERT(file_ && bytes.size() <= total_ - written_);
  file_->write(bytes);
  hasher_.update(bytes);
  written_ += bytes.size();
}

FileRecord SafetensorsWriter::close() {
  DELTATUNE_ASSERT(file_ && written_ == total_);
  file_->close();
  std::error_code problem;
  fs::rename(temporary_, path_, problem);
  if (problem) {
    throw Error(ErrorKind::resource, "cannot rename " + temporary_.string() + ": " + problem.message(),
                path_.string(), "check the folder's permissions");
  }
  file_.reset();
  return {path_.filename().string(), head_size_ + written_, hasher_.hex()};
}

}  // namespace deltatune
