// Resume state and the bookkeeping of checkpoint folders.
#include "io/resume.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/checkpoint_reader.h"
#include "io/save_folder.h"

namespace deltatune {
namespace {

constexpr const char* format_name = "deltatune resume state";
constexpr int64_t format_version = 1;
constexpr const char* state_name = "state.json";
constexpr int64_t max_world_size = 100'000;
constexpr const char* restart_fix = "resume from an older checkpoint, or start again from this one's weights";

std::string rank_file_name(size_t rank, size_t world_size) {
  return format("rank-{:05}-of-{:05}.safetensors", rank, world_size);
}

[[noreturn]] void refuse(std::string what, const fs::path& where) {
  throw Error(ErrorKind::model, std::move(what), where.string(), restart_fix);
}

std::vector<FileRecord> parse_files(const json::Value& root, const fs::path& where) {
  const int64_t world_size = root.at("world_size").as_integer();
  const json::Array& list = root.at("files").as_array();
  if (world_size < 1 || world_size > max_world_size || list.size() != static_cast<size_t>(world_size)) {
    refuse(format("world_size is {}, but {} files are listed", world_size, list.size()), where);
  }
  std::vector<FileRecord> out;
  for (size_t i = 0; i < list.size(); ++i) {
    FileRecord record{list[i].at("name").as_string(), static_cast<size_t>(list[i].at("bytes").as_integer()),
                      list[i].at("xxh3_128").as_string()};
    if (record.name != rank_file_name(i, list.size())) {
      refuse(format("file {} of the resume state is called {}, not {}", i, shown(record.name),
                    rank_file_name(i, list.size())),
             where);
    }
    out.push_back(std::move(record));
  }
  return out;
}

// checkpoint-N folders by rising N.
std::vector<CheckpointFolder> checkpoint_folders(const fs::path& output_dir) {
  std::vector<CheckpointFolder> out;
  std::error_code problem;
  for (fs::directory_iterator entries(output_dir, problem), end; !problem && entries != end;
       entries.increment(problem)) {
    CheckpointFolder found;
    std::error_code ignored;
    if (is_checkpoint_name(entries->path().filename().string(), &found.step) &&
        entries->is_directory(ignored)) {
      found.path = entries->path();
      out.push_back(std::move(found));
    }
  }
  std::sort(out.begin(), out.end(), [](const CheckpointFolder& a, const CheckpointFolder& b) {
    return std::pair(a.step, a.path) < std::pair(b.step, b.path);
  });
  return out;
}

// "" for a whole checkpoint, else what is wrong with it.
std::string incomplete_because(const fs::path& checkpoint, bool need_resume_state) {
  try {
    if (!HfCheckpoint(checkpoint).has_weights()) return "it has no weights";
    std::error_code ignored;
    if (need_resume_state || fs::exists(checkpoint / resume_folder_name, ignored)) ResumeState{checkpoint};
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

FileRecord write_resume_rank(const fs::path& checkpoint, int rank, int world_size,
                             std::span<const TensorInfo> tensors, const ParamSource& values) {
  DELTATUNE_ASSERT(rank >= 0 && rank < world_size && world_size <= max_world_size);
  const fs::path folder = checkpoint / resume_folder_name;
  std::error_code problem;
  fs::create_directories(folder, problem);  // creating the file reports what went wrong
  std::vector<PlannedTensor> plan;
  for (const TensorInfo& info : tensors)
    plan.push_back({info.name, safetensors_name(info.dtype), info.shape});
  SafetensorsWriter writer(
      folder / rank_file_name(static_cast<size_t>(rank), static_cast<size_t>(world_size)), plan, {});
  std::vector<std::byte> bytes;
  for (const StoredTensor& tensor : writer.tensors()) {
    bytes.resize(tensor.size);
    values.read(tensor.name, bytes.data());
    writer.write(bytes);
  }
  return writer.close();
}

void write_resume_state(const fs::path& checkpoint, const json::Value& state,
                        std::span<const FileRecord> ranks) {
  DELTATUNE_ASSERT(!ranks.empty());
  json::Array files;
  for (const FileRecord& record : ranks) {
    json::Value file;
    file.set("name", record.name);
    file.set("bytes", static_cast<int64_t>(record.size));
    file.set("xxh3_128", record.hash);
    files.push_back(std::move(file));
  }
  json::Value root;
  root.set("format", format_name);
  root.set("version", format_version);
  root.set("world_size", static_cast<int64_t>(ranks.size()));
  root.set("files", std::move(files));
  root.set("state_xxh3_128", hash_hex(json::dump(state)));
  root.set("state", state);
  write_file_atomic(checkpoint / resume_folder_name / state_name, json::dump(root, 2) + "\n");
}

ResumeState::ResumeState(const fs::path& checkpoint) : folder_(checkpoint / resume_folder_name) {
  const fs::path path = folder_ / state_name;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    throw Error(ErrorKind::model, "the checkpoint has no resume state", path.string(),
                "it can be the start of a new run (model_name_or_path), not be resumed");
  }
  try {
    const json::Value root = json::parse_file(path.string());
    if (root.at("format").as_string() != format_name) refuse("this is no resume state of deltatune", path);
    const int64_t version = root.at("version").as_integer();
    if (version != format_version) {
      throw Error(ErrorKind::model,
                  format("the resume state has format version {}, this program reads version {}", version,
                         format_version),
                  path.string(), "resume with the version of deltatune that wrote it");
    }
    files_ = parse_files(root, path);
    state_ = root.at("state");
    if (hash_hex(json::dump(state_)) != root.at("state_xxh3_128").as_string()) {
      refuse("state.json was altered: its hash does not fit", path);
    }
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::model) throw;
    refuse(std::string("state.json: ") + e.what(), path);
  }
  for (const FileRecord& record : files_) {
    std::error_code problem;
    const uintmax_t size = fs::file_size(folder_ / record.name, problem);
    if (problem) refuse("missing resume file " + record.name, folder_ / record.name);
    if (size != record.size) {
      refuse(format("resume file {} has {} bytes, {} were written", record.name, size, record.size),
             folder_ / record.name);
    }
  }
}

SafetensorsFile ResumeState::rank(int rank) const {
  DELTATUNE_ASSERT(rank >= 0 && rank < world_size());
  const FileRecord& record = files_[static_cast<size_t>(rank)];
  SafetensorsFile file(folder_ / record.name);
  Hasher hasher;
  if (file.all().size() != record.size || hasher.update(file.all()).hex() != record.hash) {
    refuse("resume file " + record.name + " was altered: its hash does not fit", folder_ / record.name);
  }
  return file;
}

std::optional<CheckpointFolder> latest_complete_checkpoint(const fs::path& output_dir) {
  finish_interrupted_save(output_dir);
  std::vector<CheckpointFolder> folders = checkpoint_folders(output_dir);
  for (; !folders.empty(); folders.pop_back()) {
    const std::string problem = incomplete_because(folders.back().path, true);
    if (problem.empty()) return folders.back();
    log::warn("passing over {}: {}", folders.back().path.string(), problem);
  }
  return std::nullopt;
}

void prune_checkpoints(const fs::path& output_dir, int64_t save_total_limit, std::span<const fs::path> keep) {
  if (save_total_limit < 1) return;
  const std::vector<CheckpointFolder> folders = checkpoint_folders(output_dir);
  auto left = static_cast<int64_t>(folders.size());
  if (left <= save_total_limit) return;
  if (const std::string problem = incomplete_because(folders.back().path, false); !problem.empty()) {
    log::warn("no checkpoint is deleted, because {} is incomplete: {}", folders.back().path.string(),
              problem);
    return;
  }
  for (const CheckpointFolder& folder : folders) {
    if (left <= save_total_limit || folder.path == folders.back().path) return;
    const auto is_same = [&](const fs::path& kept) {
      std::error_code ignored;
      return fs::equivalent(kept, folder.path, ignored);
    };
    if (std::any_of(keep.begin(), keep.end(), is_same)) continue;
    const fs::path doomed = folder.path.string() + ".tmp";
    std::error_code problem;
    fs::remove_all(doomed, problem);
    fs::rename(folder.path, doomed, problem);
    if (!problem) fs::remove_all(doomed, problem);
    if (problem) log::warn("cannot delete {}: {}", folder.path.string(), problem.message());
    --left;
  }
}

}  // namespace deltatune
