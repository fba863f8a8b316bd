// A folder of its own that goes away with the test.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/file.h"

namespace deltatune::testing_data {

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "deltatune-data-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  /// Makes the folders that `name` needs.
  std::string add(const std::string& name, std::string_view text) const {
    fs::create_directories((path_ / name).parent_path());
    write_file_atomic(path_ / name, text);
    return (path_ / name).string();
  }
  fs::path path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace deltatune::testing_data
