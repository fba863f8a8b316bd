// Writing one .safetensors file, tensor by tensor, in a given order.
//
// The file appears under its name only when it is complete: bytes go to PATH.tmp, which is fsynced and
// renamed by close(). Memory use is that of the caller's spans. Header as the safetensors library writes it:
// __metadata__ first, tensors in data order, padded with spaces to a multiple of 8 bytes; or the head of a
// source file, byte for byte, when the new file has the same names, dtypes and shapes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "io/safetensors.h"

namespace deltatune {

/// Size and XXH3-128 of a written file, for records that check it later.
struct FileRecord {
  std::string name;  ///< file name without folder
  size_t size = 0;
  std::string hash;
};

/// One tensor of a file to be written; dtype in safetensors spelling.
struct PlannedTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

class SafetensorsWriter {
 public:
  /// A new file with these tensors in this order. Throws Error{resource} when the file cannot be created;
  /// names must be unique, dtypes known and shapes sized (assertions).
  SafetensorsWriter(const fs::path& path, std::span<const PlannedTensor> plan,
                    const Metadata& metadata = {{"format", "pt"}});
  /// A file with the head of `source`: the same tensors at the same offsets.
  SafetensorsWriter(const fs::path& path, const SafetensorsFile& source);
  /// Removes the temporary file unless close() succeeded.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The tensors in the order in which their bytes must be given.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// The next bytes of the data section. A tensor's bytes may come in parts; several tensors may come at
  /// once. Throws Error{resource} (disk full, quota, file size limit).
  void write(std::span<const std::byte> bytes);
  /// Asserts that all bytes were given, fsyncs and renames. The caller fsyncs the folder.
  FileRecord close();

 private:
  void start(std::span<const std::byte> head);

  fs::path path_;
  fs::path temporary_;
  std::vector<StoredTensor> tensors_;
  std::unique_ptr<FileWriter> file_;
  Hasher hasher_;
  size_t written_ = 0;  ///< bytes of data
  size_t total_ = 0;    ///< bytes of data in the plan
  size_t head_size_ = 0;
};

}  // namespace deltatune
