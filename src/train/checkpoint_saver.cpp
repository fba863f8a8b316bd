// One job per save: a thread that writes, and what the ranks say about it.
#include "train/checkpoint_saver.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "comm/exchange.h"
#include "io/checkpoint_writer.h"
#include "io/resume.h"
#include "io/safetensors_head.h"
#include "io/save_folder.h"
#include "io/side_files.h"
#include "train/saved_weights.h"
#include "train/state_image.h"

namespace deltatune {
namespace {

// How often ranks that wait for the end of a save tell each other that they are there.
constexpr auto heartbeat = std::chrono::milliseconds(200);
// A folder that another machine has just made may take a moment to be seen.
constexpr auto folder_patience = std::chrono::seconds(5);

// Whether every value of `memory` dtype is in a file of `stored` dtype as it is.
bool holds_exactly(DType stored, DType memory) {
  return stored == memory || (stored == DType::f32 && (memory == DType::bf16 || memory == DType::f16));
}

// Buffers whose values the weight files hold exactly: "block 3.weights".
std::set<std::string> values_in_weights(const Engine& engine, const WeightFiles& files,
                                        const std::vector<StateTensor>& state) {
  std::set<std::string> out;
  const ParamTable& table = engine.store().table();
  for (const ParamGroup& group : table.groups) {
    const std::string name = group.name + ".weights";
    for (const StateTensor& tensor : state) {
      bool exact = tensor.name == name;
      for (const int index : group.params) {
        const Param& param = table.params[static_cast<size_t>(index)];
        for (const ParamSlice& slice : param.slices) {
          if (!exact || param.keep_f32) break;
          exact = holds_exactly(dtype_from_safetensors(files.find(slice.hf_name)->dtype).value(),
                                tensor.data.dtype);
        }
      }
      if (exact) out.insert(name);
    }
  }
  return out;
}

json::Value record_json(const std::vector<FileBlocks>& files, double seconds, size_t bytes) {
  json::Array list;
  for (const FileBlocks& file : files) list.push_back(to_json(file));
  json::Value out;
  out.set("files", std::move(list));
  out.set("seconds", seconds);
  out.set("bytes", static_cast<int64_t>(bytes));
  return out;
}

void wait_for_folder(const fs::path& path) {
  const auto end = std::chrono::steady_clock::now() + folder_patience;
  std::error_code ignored;
  while (!fs::is_directory(path, ignored)) {
    if (std::chrono::steady_clock::now() > end) {
      throw Error(ErrorKind::resource, "rank 0 has made a folder that this rank does not see", path.string(),
                  "give an output_dir on a file system that all machines share");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

// What is the same for all saves.
struct CheckpointSaver::Parts {
  StateImage image;
  SavedWeights weights;
  std::vector<TensorInfo> trained;
  const HfCheckpoint* source;
  WeightFiles files;
  std::set<std::string> in_weights;  ///< buffers that the rank's file need not hold
  std::string config_text;           ///< of a model without an input checkpoint
  fs::path side_files;

  Parts(Engine& engine, const ModelSource& model, const CheckpointOptions& options)
      : image(engine, options.only_model, options.copies),
        weights(engine, image, model),
        trained(weights.trained(options.storage)),
        source(model.weights_source()),
        files(plan_weight_files(source, trained, options.max_shard_bytes)),
        in_weights(values_in_weights(engine, files, image.tensors())) {
    if (model.random) config_text = read_file(model.folder / "config.json");
    side_files = options.side_files.empty() ? model.folder : options.side_files;
  }
};

struct CheckpointSaver::Job {
  int64_t step = 0;
  fs::path target, path;
  bool final_model = false;          ///< into output_dir, without state
  std::optional<SaveFolder> folder;  ///< rank 0's
  json::Value state;
  TrainerState trainer_state;
  bool background = false;
  Stopwatch clock;
  double stall_s = 0;
  SaveReport report;

  std::vector<StoredTensor> state_tensors;  ///< of the rank's file
  std::string state_head;
  std::vector<FileBlocks> blocks;
  std::atomic<size_t> written{0};
  std::atomic<bool> stop{false};
  double write_s = 0;
  bool committing = false;

  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::optional<Error> error;
  std::thread thread;

  ~Job() { end(); }
  void end() {
    stop = true;
    if (thread.joinable()) thread.join();
  }
  void run(std::function<void()> work) {
    if (thread.joinable()) thread.join();
    done = false;
    thread = std::thread([this, work = std::move(work)] {
      std::optional<Error> failure;
      try {
        work();
      } catch (const Error& e) {
        failure = e;
      } catch (const std::exception& e) {
        failure.emplace(ErrorKind::internal, std::string("saving failed: ") + e.what());
      }
      const std::lock_guard<std::mutex> lock(mutex);
      error = std::move(failure);
      done = true;
      changed.notify_all();
    });
  }
  /// "busy", "done" or the error.
  std::string status() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!done) return "busy";
    return error ? "error " + std::string(error->what()) : "done";
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, heartbeat, [&] { return done; });
  }
};

namespace {

// The pieces of the rank's own file, which come behind those of the weights.
void add_state_pieces(const StateImage& image, const std::set<std::string>& left_out, size_t file,
                      std::vector<StoredTensor>& tensors, std::string& head, std::vector<FilePiece>& pieces) {
  std::vector<PlannedTensor> plan;
  std::vector<const StateTensor*> kept;
  for (const StateTensor& tensor : image.tensors()) {
    if (left_out.count(tensor.name)) continue;
    kept.push_back(&tensor);
    plan.push_back({tensor.name, safetensors_name(tensor.data.dtype), {tensor.data.count()}});
  }
  tensors = place_tensors(plan);
  head = safetensors_head(tensors, {});
  cut_range(0, head.size(), 1, [&](size_t begin, size_t bytes) {
    pieces.push_back({file, begin, bytes, [&head, begin, bytes](std::byte* to, StagingLanes::Lane&) {
                        std::memcpy(to, head.data() + begin, bytes);
                      }});
  });
  for (size_t i = 0; i < kept.size(); ++i) {
    const size_t data = head.size() + tensors[i].begin;
    const std::byte* memory = kept[i]->data.data;
    cut_range(data, tensors[i].size, size_of(kept[i]->data.dtype), [&](size_t begin, size_t bytes) {
      pieces.push_back(
          {file, begin, bytes,
           [&image, from = memory + (begin - data), bytes](std::byte* to, StagingLanes::Lane& lane) {
             const std::byte* found = image.at(from, bytes, to, *lane.stream);
             if (found != to) std::memcpy(to, found, bytes);
           }});
    });
  }
}

}  // namespace

CheckpointSaver::CheckpointSaver(Engine& engine, const ModelSource& source, CheckpointOptions options)
    : engine_(engine),
      options_(std::move(options)),
      parts_(std::make_unique<Parts>(engine, source, options_)) {}

CheckpointSaver::~CheckpointSaver() = default;

void CheckpointSaver::open(Job& job) {
  const Communicator& comm = engine_.comm();
  const bool first = comm.rank() == 0;
  const bool with_state = !job.final_model && !options_.only_model;
  together(engine_.comm(), "save", [&] {
    if (!first) return;
    job.folder.emplace(job.target, job.final_model ? SaveMode::merge : SaveMode::replace);
    std::error_code problem;  // creating a file in it reports what went wrong
    if (with_state) fs::create_directory(job.folder->path() / resume_folder_name, problem);
  });
  job.path = from_rank_0(engine_.comm(), first ? job.folder->path().string() : "");
  together(engine_.comm(), "save", [&] { wait_for_folder(job.path); });
}

bool CheckpointSaver::start(int64_t step, const json::Value& state, const TrainerState& trainer_state) {
  DELTATUNE_ASSERT(!pending());
  auto job = std::make_unique<Job>();
  job->step = step;
  job->final_model = step < 0;
  job->target = job->final_model ? options_.output_dir : options_.output_dir / format("checkpoint-{}", step);
  job->state = state;
  job->trainer_state = trainer_state;
  open(*job);
  const bool can_copy = !job->final_model && parts_->image.can_copy();
  job->background = min_over_ranks(engine_.comm(), can_copy ? 1 : 0) == 1;
  parts_->image.capture(job->background);
  job->run([this, j = job.get()] {
    const Parts& parts = *parts_;
    const int rank = engine_.comm().rank(), world_size = engine_.comm().world_size();
    std::vector<PartFile> files;
    for (const WeightFile& file : parts.files.files)
      files.push_back({j->path / file.name, file.size, rank == 0});
    std::vector<FilePiece> pieces =
        weight_pieces(parts.files, parts.source, parts.trained, parts.weights, rank, world_size);
    if (!j->final_model && !options_.only_model) {
      add_state_pieces(parts.image, parts.in_weights, files.size(), j->state_tensors, j->state_head, pieces);
      size_t size = j->state_head.size();
      for (const StoredTensor& tensor : j->state_tensors) size += tensor.size;
      files.push_back({rank_file_path(j->path, rank, world_size), size, true});
    }
    if (rank == 0) {
      copy_side_files(parts.side_files, j->path, parts.config_text);
      if (!parts.files.index.empty()) write_file_atomic(j->path / index_file_name, parts.files.index);
      write_trainer_state(j->path, j->trainer_state);
    }
    j->blocks = write_pieces(files, std::move(pieces), engine_.store().lanes(), j->stop, j->written);
    j->write_s = j->clock.seconds();
  });
  job->stall_s = job->clock.seconds();
  const bool background = job->background;
  job_ = std::move(job);
  return background;
}

// Tells the other ranks how far this one is, and does what follows when all are there.
std::optional<SaveReport> CheckpointSaver::advance() {
  Communicator& comm = engine_.comm();
  Job& job = *job_;
  const std::string own = job.status();
  const std::vector<std::string> said =
      comm.world_size() == 1 ? std::vector<std::string>{own} : comm.exchange(own);
  const std::string failed = "error ";
  bool busy = false;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    busy = busy || said[rank] == "busy";
    if (!said[rank].starts_with(failed)) continue;
    const std::optional<Error> mine = job.error;
    const std::string theirs = said[rank].substr(failed.size());
    job.end();
    if (comm.world_size() > 1) comm.exchange("");  // nobody writes into the folder any more
    parts_->image.drop();
    job_.reset();
    if (mine) throw Error(*mine);
    throw Error(ErrorKind::distributed, format("rank {} could not save: {}", rank, theirs), comm.place(),
                "see the message of that rank; what was saved before is kept");
  }
  if (busy) return std::nullopt;
  if (!job.committing) {
    job.committing = true;
    const std::vector<std::string> records =
        comm.collect(json::dump(record_json(job.blocks, job.write_s, job.written)));
    job.report = {
        job.step, job.target, job.background, job.stall_s, 0, job.write_s, static_cast<int64_t>(job.written)};
    if (comm.rank() != 0) return std::nullopt;
    std::vector<FileBlocks> weights, ranks;
    job.report.bytes = 0;
    for (const std::string& text : records) {
      const json::Value record = json::parse(text, "record of a rank's files");
      job.report.bytes += record.at("bytes").as_integer();
      job.report.write_s = std::max(job.report.write_s, record.at("seconds").as_number());
      const json::Array& files = record.at("files").as_array();
      for (size_t f = 0; f < files.size(); ++f) {
        FileBlocks blocks = file_blocks_from_json(files[f]);
        if (f >= parts_->files.files.size()) {
          ranks.push_back(std::move(blocks));
        } else if (f == weights.size()) {
          weights.push_back(std::move(blocks));
        } else {
          merge_blocks(weights[f], std::move(blocks));
        }
      }
    }
    job.run([this, &job, weights = std::move(weights), ranks = std::move(ranks)] {
      if (!ranks.empty()) write_resume_state(job.path, job.state, ranks, weights);
      job.folder->commit();
      const fs::path keep[] = {job.target};
      if (!job.final_model) prune_checkpoints(options_.output_dir, options_.save_total_limit, keep);
    });
    return std::nullopt;
  }
  const SaveReport report = job.report;
  parts_->image.drop();
  job_.reset();
  return report;
}

std::optional<SaveReport> CheckpointSaver::poll() {
  return pending() ? advance() : std::nullopt;
}

SaveReport CheckpointSaver::finish() {
  DELTATUNE_ASSERT(pending());
  const Stopwatch waited;
  const bool background = job_->background;
  for (;;) {
    std::optional<SaveReport> report = advance();
    if (report) {
      (background ? report->wait_s : report->stall_s) += waited.seconds();
      return *report;
    }
    job_->wait();
  }
}

void CheckpointSaver::save_model(const TrainerState& trainer_state) {
  start(-1, {}, trainer_state);
  finish();
}

}  // namespace deltatune
