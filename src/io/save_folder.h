// A folder that appears complete or not at all.
//
// replace: the content is written to TARGET.tmp, which is fsynced and renamed to TARGET (an older TARGET is
// exchanged in one step and then deleted).
// merge: TARGET exists and keeps its other files (the final model goes into output_dir). The content is
// written to TARGET/deltatune-save.tmp; renaming that to deltatune-save.commit is the point of no return:
// from then on the new content counts, and whoever opens TARGET next finishes moving the files
// (finish_interrupted_save). The weight index, which makes files a checkpoint, is taken away before the first
// file moves and put back last, so that other programs never see a mixture of two models. Invariant: a
// process killed at any moment leaves the old content or the new one.
#pragma once

#include <string>

#include "base/file.h"

namespace deltatune {

enum class SaveMode { replace, merge };

class SaveFolder {
 public:
  /// Creates the temporary folder. Leftovers of killed saves (TARGET's own and checkpoint-*.tmp beside or in
  /// it) are removed first, an interrupted commit is finished. Only one process may save into a folder at a
  /// time. Throws Error{resource}.
  SaveFolder(fs::path target, SaveMode mode);
  /// Without commit(): removes what was written; TARGET is as it was.
  ~SaveFolder();
  SaveFolder(const SaveFolder&) = delete;
  SaveFolder& operator=(const SaveFolder&) = delete;

  /// Where to write. Files may be in sub-folders.
  const fs::path& path() const { return temporary_; }
  /// fsyncs everything and makes it TARGET's content. Throws Error{resource}.
  void commit();

 private:
  void commit_replace();
  void commit_merge();

  fs::path target_;
  fs::path temporary_;
  SaveMode mode_;
  bool active_ = true;
};

/// Finishes a commit into `folder`, or of a checkpoint-N folder in it, that a killed process left half done;
/// nothing to do is fine. Throws Error{resource} when the folder cannot be written.
void finish_interrupted_save(const fs::path& folder);

/// True for "checkpoint-" and digits; the number goes to `step`.
bool is_checkpoint_name(const std::string& name, int64_t* step = nullptr);

}  // namespace deltatune
