// A whole save of tensors in memory, as the ranks of a run do it together: each writes its part.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cpu/device.h"
#include "io/checkpoint_writer.h"
#include "io/save_folder.h"
#include "io/side_files.h"
#include "io/test_files.h"

namespace deltatune {

/// One rank's stretch of each tensor. Cuts fall anywhere.
class RankSource final : public PartSource {
 public:
  RankSource(const MemorySource& values, int rank, int world_size)
      : values_(values), rank_(rank), world_size_(world_size) {}
  const TensorInfo* find(std::string_view name) const override { return values_.find(name); }
  Part part(std::string_view name) const override {
    int64_t count = 1;
    for (const int64_t size : find(name)->shape) count *= size;
    const int64_t first = count * rank_ / world_size_;
    return {first, count * (rank_ + 1) / world_size_ - first};
  }
  const std::byte* values(std::string_view name, int64_t first, int64_t count, std::byte* scratch,
                          Stream&) const override {
    const size_t unit = size_of(find(name)->dtype);
    values_.read_part(name, static_cast<size_t>(first) * unit, static_cast<size_t>(count) * unit, scratch);
    return scratch;
  }

 private:
  const MemorySource& values_;
  int rank_, world_size_;
};

struct SaveOptions {
  std::string config_text;  ///< empty: the side files' config.json
  fs::path side_files;      ///< empty: the source's
  int64_t max_shard_bytes = 5'000'000'000;
  int ranks = 1;
};

/// Returns the blocks of each weight file, of all ranks.
inline std::vector<FileBlocks> save_hf(const fs::path& out, SaveMode mode, const HfCheckpoint* source,
                                       std::span<const TensorInfo> trained, const MemorySource& values,
                                       const SaveOptions& options = {}) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const StagingLanes lanes(*device);
  const std::atomic<bool> stop{false};
  std::atomic<size_t> written{0};
  SaveFolder folder(out, mode);
  const WeightFiles files = plan_weight_files(source, trained, options.max_shard_bytes);
  std::vector<PartFile> paths;
  std::vector<FileBlocks> all;
  for (const WeightFile& file : files.files) {
    paths.push_back({folder.path() / file.name, file.size, false});
    all.push_back({file.name, file.size, {}});
  }
  // The last rank first: nobody relies on another one's having been there.
  for (int rank = options.ranks; rank-- > 0;) {
    for (PartFile& path : paths) path.reserve = rank == 0;
    const RankSource own(values, rank, options.ranks);
    std::vector<FileBlocks> blocks = write_pieces(
        paths, weight_pieces(files, source, trained, own, rank, options.ranks), lanes, stop, written);
    for (size_t f = 0; f < all.size(); ++f) merge_blocks(all[f], std::move(blocks[f]));
  }
  if (!files.index.empty()) write_text(folder.path() / index_file_name, files.index);
  fs::path side = options.side_files;
  if (side.empty() && source) side = source->folder();
  copy_side_files(side, folder.path(), options.config_text);
  folder.commit();
  return all;
}

}  // namespace deltatune
