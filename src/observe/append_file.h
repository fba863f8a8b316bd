// A file that is appended to by whole pieces: a killed process leaves at most the last one cut.
#pragma once

#include <string_view>

#include "base/file.h"

namespace deltatune {

class AppendFile {
 public:
  /// Makes the file's folder and the file where they are not there. Throws Error{resource}.
  explicit AppendFile(const fs::path& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  int64_t size() const { return size_; }
  /// Throws Error{resource}; what was written of the piece is taken back then.
  void append(std::string_view piece);

 private:
  fs::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

}  // namespace deltatune
