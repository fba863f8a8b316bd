// Checkpoints: the store's slices into HF files, the store's flat state into the resume folder.
#include "train/checkpoint.h"

#include <cstring>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "io/checkpoint_writer.h"
#include "io/resume.h"
#include "io/save_folder.h"

namespace deltatune {
namespace {

// The store's flat buffers by name, read one at a time.
class StateSource final : public ParamSource {
 public:
  explicit StateSource(Engine& engine) : stream_(engine.stream()) {
    for (const StateTensor& tensor : engine.store().state()) {
      infos_.push_back({tensor.name, tensor.data.dtype, {tensor.data.count()}});
      data_.emplace(tensor.name, tensor.data);
    }
  }
  const std::vector<TensorInfo>& infos() const { return infos_; }
  const TensorInfo* find(std::string_view name) const override {
    for (const TensorInfo& info : infos_) {
      if (info.name == name) return &info;
    }
    return nullptr;
  }
  void read(std::string_view name, std::byte* to) const override {
    stream_.download(to, data_.find(name)->second);
    stream_.sync();
  }

 private:
  Stream& stream_;
  std::vector<TensorInfo> infos_;
  std::map<std::string, Tensor, std::less<>> data_;
};

SaveOptions save_options(const CheckpointOptions& options, const ModelSource& source) {
  SaveOptions out;
  out.max_shard_bytes = options.max_shard_bytes;
  if (source.random) out.config_text = read_file(source.folder / "config.json");
  out.side_files = options.side_files.empty() && source.random ? source.folder : options.side_files;
  return out;
}

void write_model(const fs::path& folder, const CheckpointOptions& options, Engine& engine,
                 const ModelSource& source) {
  const StoreSource values(engine.store(), engine.stream(), source);
  const std::vector<TensorInfo> trained = values.trained(options.storage);
  write_hf(folder, source.weights_source(), trained, values, save_options(options, source));
}

}  // namespace

fs::path save_checkpoint(const CheckpointOptions& options, Engine& engine, const ModelSource& source,
                         int64_t step, const json::Value& state, const TrainerState& trainer_state) {
  const fs::path target = options.output_dir / format("checkpoint-{}", step);
  SaveFolder folder(target, SaveMode::replace);
  write_model(folder.path(), options, engine, source);
  write_trainer_state(folder.path(), trainer_state);
  if (!options.only_model) {
    const StateSource values(engine);
    const FileRecord record = write_resume_rank(folder.path(), 0, 1, values.infos(), values);
    write_resume_state(folder.path(), state, std::span(&record, 1));
  }
  folder.commit();
  const fs::path keep[] = {target};
  prune_checkpoints(options.output_dir, options.save_total_limit, keep);
  return target;
}

void save_model(const CheckpointOptions& options, Engine& engine, const ModelSource& source,
                const TrainerState& trainer_state) {
  SaveFolder folder(options.output_dir, SaveMode::merge);
  write_model(folder.path(), options, engine, source);
  write_trainer_state(folder.path(), trainer_state);
  folder.commit();
}

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

json::Value load_checkpoint(const fs::path& checkpoint, Engine& engine) {
  const ResumeState resume(checkpoint);
  if (resume.world_size() != 1) {
    throw Error(ErrorKind::model,
                format("the checkpoint was written by {} ranks, this run has 1", resume.world_size()),
                checkpoint.string(), "resume with the same number of ranks");
  }
  const SafetensorsFile file = resume.rank(0);
  for (const StateTensor& tensor : engine.store().state()) {
    const StoredTensor* stored = file.find(tensor.name);
    if (!stored || stored->size != tensor.data.bytes()) {
      throw Error(
          ErrorKind::model, format("resume state has no {} of {} bytes", tensor.name, tensor.data.bytes()),
          checkpoint.string(),
          "resume with the model, dtype, optim_dtype and master_weights that the checkpoint was made with");
    }
    engine.stream().upload(tensor.data, file.bytes(*stored).data());
  }
  engine.store().refresh_storage(engine.stream());
  engine.stream().sync();
  return resume.state();
}

}  // namespace deltatune
