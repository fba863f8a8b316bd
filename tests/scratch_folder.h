// A folder of a test's own that goes away with the object.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace deltatune {

class ScratchFolder {
 public:
  ScratchFolder() {
    // mkdtemp(3) replaces the last six letters.
    std::string pattern =
        (std::filesystem::temp_directory_path() / "deltatune-test-").string() + std::string(6, 'X');
    if (::mkdtemp(pattern.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), pattern);
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  /// Writes a file, making the folders that `name` needs; its path.
  std::string write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream file(path_ / name, std::ios::binary);
    file << text;
    file.close();
    if (!file) throw std::system_error(std::make_error_code(std::errc::io_error), (path_ / name).string());
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace deltatune
