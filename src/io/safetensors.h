// Reading one .safetensors file.
//
// Format (https://github.com/huggingface/safetensors, "Format"): 8 bytes little-endian u64 N; N bytes of JSON
// {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {str:
// str}}, which may end in spaces; then the data, which the offsets (relative to its start) must cover
// exactly.
//
// Invariants: after construction every tensor lies inside the file, spans do not overlap and leave no gap,
// sizes fit dtype and shape. Nothing is allocated from a number in the file before that number was checked
// against the file's size. Data may be unaligned: readers copy. Not done here: folders and indexes
// (checkpoint_reader.h), conversion of dtypes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tensor/dtype.h"

namespace deltatune {

/// Name of the index of a sharded checkpoint, and of the one file of an unsharded one.
inline constexpr const char* index_file_name = "model.safetensors.index.json";
inline constexpr const char* single_file_name = "model.safetensors";

/// One tensor of a file. `dtype` keeps the file's spelling ("BF16", "F8_E4M3", ...), because dtypes that
/// DType lacks are still carried byte for byte.
struct StoredTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  size_t begin = 0;  ///< bytes from the start of the data section
  size_t size = 0;   ///< bytes
};

/// Bits per element of a safetensors dtype, 0 for an unknown one. All 22 dtypes of safetensors 0.8.
int dtype_bits(std::string_view dtype);
/// The DType of a safetensors dtype; nothing for those DType lacks (F8_*, I8, BOOL, ...).
std::optional<DType> dtype_from_safetensors(std::string_view dtype);
/// "BF16" for bf16 and so on.
const char* safetensors_name(DType dtype);
/// Bytes of a tensor; nothing on overflow, unknown dtype, negative size or a size that is no whole byte
/// count.
std::optional<size_t> stored_bytes(std::string_view dtype, std::span<const int64_t> shape);

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;                          ///< in the header's order
  std::vector<std::pair<std::string, std::string>> metadata;  ///< __metadata__, in the header's order
  size_t data_begin = 0;                                      ///< bytes from the start of the file
};

/// Parses and checks the header of a whole file's bytes. `where` names the file in errors. Throws
/// Error{model}.
SafetensorsHeader parse_safetensors(std::string_view file, std::string_view where);

/// A memory-mapped file. Copies share the mapping, which lives until the last of them is gone.
class SafetensorsFile {
 public:
  /// Throws Error{model} when the file is missing, unreadable or malformed.
  explicit SafetensorsFile(const fs::path& path);

  const fs::path& path() const { return contents_->map.path(); }
  const SafetensorsHeader& header() const { return contents_->header; }
  const std::vector<StoredTensor>& tensors() const { return contents_->header.tensors; }
  /// nullptr when there is no tensor of that name.
  const StoredTensor* find(std::string_view name) const;
  /// The tensor's bytes, valid as long as any copy of this file.
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;
  /// Everything before the data: length, JSON, padding.
  std::span<const std::byte> head() const { return all().first(header().data_begin); }
  /// All bytes of the file.
  std::span<const std::byte> all() const { return contents_->map.bytes(); }
  /// Tells the kernel that these bytes (a part of all()) are not needed soon, so that copying a checkpoint
  /// does not keep it resident. They can still be read.
  void drop(std::span<const std::byte> part) const;

 private:
  struct Contents {
    MappedFile map;
    SafetensorsHeader header;
    std::map<std::string_view, size_t> by_name;
  };
  std::shared_ptr<const Contents> contents_;
};

/// Pointers to the tensors, by the place of their bytes.
std::vector<const StoredTensor*> in_data_order(std::span<const StoredTensor> tensors);

/// A name from a file as it goes into a message: quoted, cut after about 200 bytes.
std::string shown(std::string_view name);
/// "[2, 3]".
std::string shown(std::span<const int64_t> shape);

}  // namespace deltatune
