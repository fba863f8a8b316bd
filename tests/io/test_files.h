// Folders and checkpoint files for the tests of io.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "base/file.h"

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

}  // namespace deltatune
