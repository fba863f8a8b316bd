// Folders and checkpoint files for the tests of io.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "io/checkpoint_reader.h"
#include "io/safetensors_head.h"
#include "tensor/param_source.h"

namespace deltatune {

/// A fresh folder that is removed with its contents.
class TempFolder {
 public:
  explicit TempFolder(const std::string& name)
      : path_(fs::path(testing::TempDir()) / ("dt_" + name + "_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const fs::path& path() const { return path_; }
  fs::path operator/(const fs::path& name) const { return path_ / name; }

 private:
  fs::path path_;
};

/// A safetensors file as raw bytes: length, header text, data. Nothing is checked.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return out.append(header).append(data);
}

/// Tensors in memory, as the parameter store offers them.
class MemorySource final : public ParamSource {
 public:
  void put(const std::string& name, DType dtype, std::vector<int64_t> shape, std::vector<std::byte> bytes) {
    values_[name] = {{name, dtype, std::move(shape)}, std::move(bytes)};
  }
  void put(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& floats) {
    const auto bytes = std::as_bytes(std::span(floats));
    put(name, DType::f32, std::move(shape), {bytes.begin(), bytes.end()});
  }
  /// A tensor of a checkpoint, converted to `dtype`.
  void put(const HfCheckpoint& from, const std::string& name, DType dtype) {
    const TensorInfo& info = *from.find(name);
    std::vector<std::byte> stored(from.bytes(name).size());
    from.read(name, stored.data());
    const size_t count = stored.size() / size_of(info.dtype);
    std::vector<std::byte> converted(count * size_of(dtype));
    convert(converted.data(), dtype, stored.data(), info.dtype, static_cast<int64_t>(count));
    put(name, dtype, info.shape, std::move(converted));
  }
  const TensorInfo* find(std::string_view name) const override {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second.first;
  }
  void read(std::string_view name, std::byte* to) const override {
    const auto& bytes = values_.find(name)->second.second;
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  }
  void read_part(std::string_view name, size_t begin, size_t bytes, std::byte* to) const override {
    if (bytes > 0) std::memcpy(to, values_.find(name)->second.second.data() + begin, bytes);
  }
  std::vector<TensorInfo> infos() const {
    std::vector<TensorInfo> out;
    for (const auto& [name, value] : values_) out.push_back(value.first);
    return out;
  }

 private:
  std::map<std::string, std::pair<TensorInfo, std::vector<std::byte>>, std::less<>> values_;
};

/// Without fsync, which the tests need not wait for.
inline void write_text(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// One safetensors file whose bytes are a function of `seed`: finite values of every dtype, both zeros,
/// subnormals.
inline void write_tensors(const fs::path& path, const std::vector<PlannedTensor>& plan, uint32_t seed = 1) {
  const std::vector<StoredTensor> tensors = place_tensors(plan);
  std::string text = safetensors_head(tensors);
  for (const StoredTensor& tensor : tensors) {
    std::string bytes(tensor.size, '\0');
    const size_t width = std::max<size_t>(1, static_cast<size_t>(dtype_bits(tensor.dtype)) / 8);
    for (size_t i = 0; i < bytes.size(); ++i) {
      seed = seed * 1664525u + 1013904223u;
      bytes[i] = static_cast<char>(seed >> 24);
      // The top exponent bit cleared: finite in every floating dtype.
      if (i % width == width - 1) bytes[i] = static_cast<char>(bytes[i] & 0xbf);
    }
    text += bytes;
  }
  write_text(path, text);
}

/// A checkpoint of three oddly named shards with an index: BF16, F32 and F16, a rank-5 vision tensor, mtp, an
/// I64 and an F8 tensor that nothing trains, side files. `seed` makes other values. The trained tensors are
/// those of trained_names().
inline void write_sharded_checkpoint(const fs::path& folder, uint32_t seed = 1) {
  fs::create_directories(folder);
  write_tensors(folder / "model.safetensors-00001-of-00002.safetensors",
                {{"model.b.weight", "BF16", {3, 5}},
                 {"model.a.weight", "F16", {7}},
                 {"model.visual.patch", "BF16", {2, 1, 2, 3, 2}}},
                seed);
  write_tensors(folder / "layers-22.safetensors",
                {{"model.A_log", "F32", {4}}, {"mtp.fc.weight", "BF16", {2, 2}}, {"count", "I64", {}}},
                seed + 1);
  write_tensors(folder / "x.safetensors", {{"lm_head.weight", "BF16", {6, 2}}, {"table", "F8_E4M3", {5}}},
                seed + 2);
  write_text(folder / index_file_name, R"({"metadata":{"total_size":1,"note":"kept"},"weight_map":{
    "model.b.weight":"model.safetensors-00001-of-00002.safetensors","model.a.weight":"model.safetensors-00001-of-00002.safetensors",
    "model.visual.patch":"model.safetensors-00001-of-00002.safetensors","model.A_log":"layers-22.safetensors",
    "mtp.fc.weight":"layers-22.safetensors","count":"layers-22.safetensors","lm_head.weight":"x.safetensors","table":"x.safetensors"}})");
  write_text(folder / "config.json",
             "{\"model_type\": \"qwen3_5\", \"seed\": " + std::to_string(seed) + "}\n");
  write_text(folder / "tokenizer.json", "{ }");
}

inline std::vector<std::string> trained_names() {
  return {"model.b.weight", "model.a.weight", "model.A_log", "lm_head.weight"};
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// The error that `f` throws, as its three lines; "" when it throws none. `kind` is checked.
template <class F>
std::string error_text(ErrorKind kind, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.text();
    EXPECT_FALSE(e.where().empty()) << e.text();
    EXPECT_FALSE(e.fix().empty()) << e.text();
    return e.text();
  }
  return "";
}

}  // namespace deltatune
