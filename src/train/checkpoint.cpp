// The store's flat buffers from the stretches of files that hold them.
#include "train/checkpoint.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "io/part_writer.h"
#include "io/resume.h"

namespace deltatune {

std::optional<fs::path> find_resume(const std::string& wish, const fs::path& output_dir) {
  if (wish.empty() || wish == "false") return std::nullopt;
  if (wish != "true") {
    // Looked at before anything is prepared or removed.
    if (fs::exists(fs::path(wish) / resume_folder_name / "state.json")) return fs::path(wish);
    throw Error(ErrorKind::model, "there is no resumable checkpoint in " + wish, "resume_from_checkpoint",
                "name a checkpoint-N folder of a run, or say true for the latest one of output_dir");
  }
  const std::optional<CheckpointFolder> latest = latest_complete_checkpoint(output_dir);
  if (!latest) {
    log::info("resume_from_checkpoint: no complete checkpoint in {} yet; starting from the beginning",
              output_dir.string());
    return std::nullopt;
  }
  return latest->path;
}

namespace {

// Where the elements of the store's flat buffers lie in the files of the ranks that wrote them.
class Recutter {
 public:
  Recutter(const ResumeState& resume, Engine& engine)
      : resume_(resume), engine_(engine), same_world_(resume.world_size() == engine.comm().world_size()) {}

  // False: the ranks' files have no such buffer.
  bool add(const StateTensor& tensor) {
    if (same_world_ || tensor.replicated) {
      const int rank = same_world_ ? engine_.comm().rank() : 0;
      const StoredTensor* whole = file(rank).find(tensor.name);
      if (!whole) return false;
      if (elements(tensor, *whole) != tensor.data.count()) refuse(tensor);
      add(tensor.data, rank, *whole, 0);
      return true;
    }
    const StoredTensor* any = file(any_file()).find(tensor.name);
    if (!any) return false;
    // Parts are equally long. Beyond the parameters there is padding, which is zero and depends on the world.
    const int64_t length = elements(tensor, *any);
    const int64_t written = length * resume_.world_size();
    const int64_t wanted = tensor.data.count() * engine_.comm().world_size();
    const int64_t most_padding =
        ShardLayout::alignment * std::max(resume_.world_size(), engine_.comm().world_size());
    if (std::abs(written - wanted) >= most_padding) refuse(tensor);
    const int64_t end = std::min(tensor.begin + tensor.data.count(), written);
    for (int64_t at = tensor.begin; at < end;) {
      const auto rank = static_cast<int>(at / length);
      const int64_t count = std::min(end, (rank + 1) * length) - at;
      const StoredTensor* part = file(rank).find(tensor.name);
      if (!part || elements(tensor, *part) != length) refuse(tensor);
      add(tensor.data.slice(at - tensor.begin, count), rank, *part, at - rank * length);
      at += count;
    }
    return true;
  }

  void read() {
    const auto one = [&](int64_t i, StagingLanes::Lane& lane) {
      const Stretch& stretch = stretches_[static_cast<size_t>(i)];
      stretch.file->read(*stretch.tensor, stretch.begin, {lane.first, stretch.to.bytes()});
      lane.stream->upload(stretch.to, lane.first);
      lane.stream->sync();
    };
    engine_.store().lanes().run(static_cast<int64_t>(stretches_.size()), one);
  }

  [[noreturn]] void refuse(const StateTensor& tensor) const {
    throw Error(ErrorKind::model, format("resume state has no {} of this run's size and dtype", tensor.name),
                resume_.checkpoint().string(),
                "resume with the model, dtype, optim, optim_dtype and master_weights that the checkpoint was "
                "made with");
  }

 private:
  struct Stretch {
    const RankFile* file;
    const StoredTensor* tensor;
    size_t begin;  // of the tensor's bytes
    Tensor to;
  };

  // A file that has to be opened anyway, where there is one.
  int any_file() const { return files_.empty() ? 0 : files_.begin()->first; }

  const RankFile& file(int rank) {
    const auto found = files_.find(rank);
    return found != files_.end() ? found->second : files_.try_emplace(rank, resume_, rank).first->second;
  }
  int64_t elements(const StateTensor& tensor, const StoredTensor& stored) const {
    if (dtype_from_safetensors(stored.dtype) != tensor.data.dtype || stored.size == 0) refuse(tensor);
    return static_cast<int64_t>(stored.size / size_of(tensor.data.dtype));
  }
  void add(Tensor to, int rank, const StoredTensor& from, int64_t first) {
    const RankFile& stored = file(rank);
    const size_t unit = size_of(to.dtype);
    const size_t begin = static_cast<size_t>(first) * unit;
    // Cut as they were written: a stretch is then made of whole blocks, which are read once to be checked.
    cut_range(stored.offset(from) + begin, to.bytes(), unit, [&](size_t at, size_t bytes) {
      const size_t inside = at - stored.offset(from);
      stretches_.push_back(
          {&stored, &from, inside,
           to.slice(static_cast<int64_t>((inside - begin) / unit), static_cast<int64_t>(bytes / unit))});
    });
  }

  const ResumeState& resume_;
  Engine& engine_;
  bool same_world_;
  std::map<int, RankFile> files_;
  std::vector<Stretch> stretches_;
};

}  // namespace

json::Value load_checkpoint(const fs::path& checkpoint, Engine& engine) {
  const ResumeState resume(checkpoint);
  Recutter recutter(resume, engine);
  ParamStore& store = engine.store();
  bool values_in_weights = false;
  for (const StateTensor& tensor : store.state()) {
    if (recutter.add(tensor)) continue;
    // Values that the weight files hold exactly are only there.
    if (!tensor.name.ends_with(".weights")) recutter.refuse(tensor);
    values_in_weights = true;
  }
  if (values_in_weights) {
    store.load(engine.stream(), CheckedWeights(resume));
  } else {
    store.clear(engine.stream());
  }
  engine.stream().sync();
  recutter.read();
  store.refresh_storage(engine.stream());
  engine.stream().sync();
  return resume.state();
}

}  // namespace deltatune
