// A folder of files, on this machine or in an object store, as far as choosing among its files needs.
//
// Paths are relative to the tree; full() makes them what data/row_source.h opens. Folders of an object store
// exist by what lies below them; a store is listed once, when the tree is made.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "data/remote_files.h"

namespace deltatune {

class FileTree {
 public:
  FileTree() = default;
  virtual ~FileTree() = default;
  FileTree(const FileTree&) = delete;
  FileTree& operator=(const FileTree&) = delete;
  virtual std::string name() const = 0;  ///< for messages
  /// Regular files directly in folder `inner` ("": the tree itself), any order. Throws Error{data} when the
  /// folder cannot be read.
  virtual std::vector<fs::path> files_in(const fs::path& inner) const = 0;
  /// The same at any depth below `inner`; links to folders are not followed.
  virtual std::vector<fs::path> files_below(const fs::path& inner) const = 0;
  virtual bool has_folder(const fs::path& inner) const = 0;
  /// The bytes of a small file; empty when there is none.
  virtual std::string text(const fs::path& file) const = 0;
  virtual fs::path full(const fs::path& inner) const = 0;
};

class LocalTree final : public FileTree {
 public:
  explicit LocalTree(fs::path root) : root_(std::move(root)) {}
  std::string name() const override { return root_.string(); }
  std::vector<fs::path> files_in(const fs::path& inner) const override;
  std::vector<fs::path> files_below(const fs::path& inner) const override;
  bool has_folder(const fs::path& inner) const override;
  std::string text(const fs::path& file) const override;
  fs::path full(const fs::path& inner) const override { return root_ / inner; }

 private:
  fs::path root_;
};

class RemoteTree final : public FileTree {
 public:
  /// Lists all objects below `uri`; throws what remote_files_below() throws.
  explicit RemoteTree(const std::string& uri);
  bool empty() const { return files_.empty(); }
  std::string name() const override { return root_; }
  std::vector<fs::path> files_in(const fs::path& inner) const override;
  std::vector<fs::path> files_below(const fs::path& inner) const override;
  bool has_folder(const fs::path& inner) const override { return !files_below(inner).empty(); }
  std::string text(const fs::path& file) const override;
  fs::path full(const fs::path& inner) const override;

 private:
  std::string root_;     // without '/' at its end
  std::string options_;  // of the URI, '?' included
  std::vector<fs::path> files_;
};

}  // namespace deltatune
