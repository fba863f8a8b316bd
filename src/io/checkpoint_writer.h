// Writing a Hugging Face checkpoint folder.
//
// With a source: the same files, each with the same head (names, order, shapes, dtypes, offsets,
// __metadata__), so a save without a training step gives weight files equal byte for byte. Trained tensors
// are converted to the file's dtype, rounding to nearest even (f64 through f32 to the half types); all others
// (vision tower, mtp.*,
// ...) are copied as bytes. The index is written anew: total_size, names sorted.
// Without a source: shards of at most max_shard_bytes, named as transformers names them.
// Invariants: no NaN and no infinity is ever written for a trained tensor; peak memory is about one tensor.
// Not done here: config.json is not edited.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/checkpoint_reader.h"
#include "io/save_folder.h"
#include "tensor/param_source.h"

namespace deltatune {

struct SaveOptions {
  /// config.json, byte for byte; empty: copied with the side files.
  std::string config_text;
  /// Folder whose side files are copied; empty: the source's folder, or none without a source.
  fs::path side_files;
  /// Bytes of tensors per file; only without a source (or with one that has no weights).
  int64_t max_shard_bytes = 5'000'000'000;
};

/// Writes weights, index and side files into `folder`, which exists and is empty of them
/// (SaveFolder::path()). `trained`: the tensors to take from `values`, under their file names; dtype is the
/// dtype in the file and counts only without a source (all tensors of the new checkpoint are then listed, in
/// the order wanted). values.find() says dtype and shape in memory; the shape must be the file's. A head that
/// ships twice (tied, equal bytes) is trained under both names. Throws Error{resource} (disk full, ...),
/// Error{diverged} (NaN or infinity in memory), Error{model} (value out of the file dtype's range; a trained
/// tensor that the source lacks).
void write_hf(const fs::path& folder, const HfCheckpoint* source, std::span<const TensorInfo> trained,
              const ParamSource& values, const SaveOptions& options = {});

/// write_hf into a SaveFolder of `mode`, then commit: after any failure `out_dir` is as it was.
void save_hf(const fs::path& out_dir, SaveMode mode, const HfCheckpoint* source,
             std::span<const TensorInfo> trained, const ParamSource& values, const SaveOptions& options = {});

/// The files of a checkpoint folder that a fine-tuned copy takes over: every regular file that is neither
/// weights (of any format), nor an index of them, nor left by a training run; also those in sub-folders of up
/// to 100 MB. Relative paths, sorted.
std::vector<fs::path> side_files_of(const fs::path& folder);

}  // namespace deltatune
