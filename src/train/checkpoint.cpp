// Checkpoints: the store's slices into HF files, the store's flat state into the resume folder.
#include "train/checkpoint.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "comm/exchange.h"
#include "io/checkpoint_writer.h"
#include "io/resume.h"
#include "io/save_folder.h"
#include "ops/ops.h"

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

// Does `work` on every rank; when it fails on one of them, all know and stop: that rank with its error, the
// others with one that names it. `work` is not collective, so that nobody is left waiting in it.
void together(Communicator& comm, const std::function<void()>& work) {
  if (comm.world_size() == 1) return work();
  std::optional<Error> own;
  try {
    work();
  } catch (const Error& error) {
    own = error;
  }
  const std::vector<std::string> said = comm.exchange(own ? own->what() : "");
  if (own) throw Error(*own);
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].empty()) continue;
    throw Error(ErrorKind::distributed, format("rank {} could not save: {}", rank, said[rank]), comm.place(),
                "see the message of that rank; what was saved before is kept");
  }
}

// Rank 0 writes, the others give it their parts of each tensor.
void write_model(const fs::path& folder, const CheckpointOptions& options, Engine& engine,
                 const ModelSource& source) {
  Communicator& comm = engine.comm();
  const StoreSource values(engine.store(), comm, engine.stream(), source);
  if (comm.rank() != 0) {
    values.serve();
    return together(comm, [] {});
  }
  std::optional<Error> failure;
  try {
    const std::vector<TensorInfo> trained = values.trained(options.storage);
    write_hf(folder, source.weights_source(), trained, values, save_options(options, source));
  } catch (const Error& error) {
    // After a lost peer there is nobody to tell.
    if (error.kind() == ErrorKind::distributed || comm.world_size() == 1) throw;
    failure = error;
  }
  values.finish();
  together(comm, [&] {
    if (failure) throw Error(*failure);
  });
}

std::string to_text(const FileRecord& record) {
  json::Value out;
  out.set("name", record.name);
  out.set("size", static_cast<int64_t>(record.size));
  out.set("hash", record.hash);
  return json::dump(out);
}
FileRecord to_record(const std::string& text) {
  const json::Value value = json::parse(text, "record of a rank's file");
  return {value.at("name").as_string(), static_cast<size_t>(value.at("size").as_integer()),
          value.at("hash").as_string()};
}

}  // namespace

fs::path save_checkpoint(const CheckpointOptions& options, Engine& engine, const ModelSource& source,
                         int64_t step, const json::Value& state, const TrainerState& trainer_state) {
  Communicator& comm = engine.comm();
  const bool first = comm.rank() == 0;
  const fs::path target = options.output_dir / format("checkpoint-{}", step);
  std::optional<SaveFolder> folder;
  together(comm, [&] {
    if (first) folder.emplace(target, SaveMode::replace);
  });
  const fs::path path = from_rank_0(comm, first ? folder->path().string() : "");
  write_model(path, options, engine, source);
  FileRecord record;
  together(comm, [&] {
    if (first) write_trainer_state(path, trainer_state);
    if (options.only_model) return;
    const StateSource values(engine);
    record = write_resume_rank(path, comm.rank(), comm.world_size(), values.infos(), values);
  });
  const std::vector<std::string> records = comm.collect(to_text(record));
  together(comm, [&] {
    if (!first) return;
    std::vector<FileRecord> files;
    for (const std::string& text : records) files.push_back(to_record(text));
    if (!options.only_model) write_resume_state(path, state, files);
    folder->commit();
    const fs::path keep[] = {target};
    prune_checkpoints(options.output_dir, options.save_total_limit, keep);
  });
  return target;
}

void save_model(const CheckpointOptions& options, Engine& engine, const ModelSource& source,
                const TrainerState& trainer_state) {
  Communicator& comm = engine.comm();
  const bool first = comm.rank() == 0;
  std::optional<SaveFolder> folder;
  together(comm, [&] {
    if (first) folder.emplace(options.output_dir, SaveMode::merge);
  });
  write_model(first ? folder->path() : fs::path(), options, engine, source);
  together(comm, [&] {
    if (!first) return;
    write_trainer_state(folder->path(), trainer_state);
    folder->commit();
  });
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

namespace {

// One flat buffer of the store from the parts that `ranks` ranks have written.
class Recutter {
 public:
  Recutter(const fs::path& checkpoint, const ResumeState& resume, Engine& engine)
      : checkpoint_(checkpoint), resume_(resume), engine_(engine) {}

  void fill(const StateTensor& tensor) {
    if (resume_.world_size() == engine_.comm().world_size()) {
      const int rank = engine_.comm().rank();
      return upload(tensor, tensor.data, rank, 0, part(tensor, rank));
    }
    if (tensor.replicated) return upload(tensor, tensor.data, 0, 0, part(tensor, 0));
    // Parts are equally long. Beyond the parameters there is padding, which is zero and depends on the world.
    const int64_t length = elements(tensor, part(tensor, any_file()));
    const int64_t written = length * resume_.world_size();
    const int64_t wanted = tensor.data.count() * engine_.comm().world_size();
    const int64_t most_padding =
        ShardLayout::alignment * std::max(resume_.world_size(), engine_.comm().world_size());
    if (std::abs(written - wanted) >= most_padding) refuse(tensor);
    ops::fill(engine_.stream(), tensor.data, 0);
    const int64_t end = std::min(tensor.begin + tensor.data.count(), written);
    for (int64_t at = tensor.begin; at < end;) {
      const auto rank = static_cast<int>(at / length);
      const int64_t count = std::min(end, (rank + 1) * length) - at;
      upload(tensor, tensor.data.slice(at - tensor.begin, count), rank, at - rank * length,
             part(tensor, rank));
      at += count;
    }
  }

 private:
  // A part that has to be read anyway, where there is one: files are large.
  int any_file() const { return files_.empty() ? 0 : files_.begin()->first; }

  const SafetensorsFile& file(int rank) {
    const auto found = files_.find(rank);
    return found != files_.end() ? found->second : files_.emplace(rank, resume_.rank(rank)).first->second;
  }
  const StoredTensor& part(const StateTensor& tensor, int rank) {
    const StoredTensor* stored = file(rank).find(tensor.name);
    if (!stored) refuse(tensor);
    return *stored;
  }
  int64_t elements(const StateTensor& tensor, const StoredTensor& stored) const {
    if (dtype_from_safetensors(stored.dtype) != tensor.data.dtype || stored.size == 0) refuse(tensor);
    return static_cast<int64_t>(stored.size / size_of(tensor.data.dtype));
  }
  void upload(const StateTensor& tensor, Tensor to, int rank, int64_t first, const StoredTensor& from) {
    if (first + to.count() > elements(tensor, from)) refuse(tensor);
    const bool whole = resume_.world_size() == engine_.comm().world_size() || tensor.replicated;
    if (whole && from.size != to.bytes()) refuse(tensor);
    engine_.stream().upload(to,
                            file(rank).bytes(from).data() + static_cast<size_t>(first) * size_of(to.dtype));
  }
  [[noreturn]] void refuse(const StateTensor& tensor) const {
    throw Error(
        ErrorKind::model, format("resume state has no {} of this run's size and dtype", tensor.name),
        checkpoint_.string(),
        "resume with the model, dtype, optim_dtype and master_weights that the checkpoint was made with");
  }

  const fs::path& checkpoint_;
  const ResumeState& resume_;
  Engine& engine_;
  std::map<int, SafetensorsFile> files_;  // mapped until everything is uploaded
};

}  // namespace

json::Value load_checkpoint(const fs::path& checkpoint, Engine& engine) {
  const ResumeState resume(checkpoint);
  Recutter recutter(checkpoint, resume, engine);
  for (const StateTensor& tensor : engine.store().state()) recutter.fill(tensor);
  engine.store().refresh_storage(engine.stream());
  engine.stream().sync();
  return resume.state();
}

}  // namespace deltatune
