// Resume state and the bookkeeping of checkpoint folders.
#include "io/resume.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/save_folder.h"

namespace deltatune {
namespace {

constexpr const char* format_name = "deltatune resume state";
constexpr int64_t format_version = 2;
constexpr const char* state_name = "state.json";
constexpr int64_t max_world_size = 100'000;
constexpr const char* restart_fix = "resume from an older checkpoint, or start again from this one's weights";

std::string rank_file_name(size_t rank, size_t world_size) {
  return format("rank-{:05}-of-{:05}.safetensors", rank, world_size);
}

[[noreturn]] void refuse(std::string what, const fs::path& where) {
  throw Error(ErrorKind::model, std::move(what), where.string(), restart_fix);
}

// The records of rank files; their names are known, so that none leads out of the folder.
std::vector<FileBlocks> parse_ranks(const json::Value& root, const fs::path& where) {
  const int64_t world_size = root.at("world_size").as_integer();
  const json::Array& list = root.at("files").as_array();
  if (world_size < 1 || world_size > max_world_size || list.size() != static_cast<size_t>(world_size)) {
    refuse(format("world_size is {}, but {} files are listed", world_size, list.size()), where);
  }
  std::vector<FileBlocks> out;
  for (size_t i = 0; i < list.size(); ++i) {
    out.push_back(file_blocks_from_json(list[i]));
    if (out.back().name == rank_file_name(i, list.size())) continue;
    refuse(format("file {} of the resume state is called {}, not {}", i, shown(out.back().name),
                  rank_file_name(i, list.size())),
           where);
  }
  return out;
}

std::vector<FileBlocks> parse_weights(const json::Value& root, const fs::path& where) {
  std::vector<FileBlocks> out;
  for (const json::Value& item : root.at("weights").as_array()) {
    out.push_back(file_blocks_from_json(item));
    const std::string& name = out.back().name;
    if (name.find('/') == std::string::npos && name.ends_with(".safetensors")) continue;
    refuse(format("{} is no name of a weight file", shown(name)), where);
  }
  return out;
}

void check_size(const fs::path& path, const FileBlocks& record) {
  std::error_code problem;
  const uintmax_t size = fs::file_size(path, problem);
  if (problem) refuse("missing resume file " + record.name, path);
  if (size != record.size)
    refuse(format("resume file {} has {} bytes, {} were written", record.name, size, record.size), path);
}

// A header decides where everything else lies: it must be the one that was written.
void check_head(const SafetensorsFile& file, const HashedFile& checked) {
  std::vector<std::byte> head(file.header().data_begin);
  checked.read(0, head);
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

fs::path rank_file_path(const fs::path& checkpoint, int rank, int world_size) {
  DELTATUNE_ASSERT(rank >= 0 && rank < world_size && world_size <= max_world_size);
  return checkpoint / resume_folder_name /
         rank_file_name(static_cast<size_t>(rank), static_cast<size_t>(world_size));
}

void write_resume_state(const fs::path& checkpoint, const json::Value& state,
                        std::span<const FileBlocks> ranks, std::span<const FileBlocks> weights) {
  DELTATUNE_ASSERT(!ranks.empty());
  const auto list = [](std::span<const FileBlocks> files) {
    json::Array out;
    for (const FileBlocks& file : files) out.push_back(to_json(file));
    return out;
  };
  json::Value root;
  root.set("format", format_name);
  root.set("version", format_version);
  root.set("world_size", static_cast<int64_t>(ranks.size()));
  root.set("files", list(ranks));
  root.set("weights", list(weights));
  root.set("state_xxh3_128", hash_hex(json::dump(state)));
  root.set("state", state);
  write_file_atomic(checkpoint / resume_folder_name / state_name, json::dump(root) + "\n");
}

ResumeState::ResumeState(const fs::path& checkpoint) : checkpoint_(checkpoint) {
  const fs::path folder = checkpoint / resume_folder_name;
  const fs::path path = folder / state_name;
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
    ranks_ = parse_ranks(root, path);
    weights_ = parse_weights(root, path);
    state_ = root.at("state");
    if (hash_hex(json::dump(state_)) != root.at("state_xxh3_128").as_string()) {
      refuse("state.json was altered: its hash does not fit", path);
    }
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::model) throw;
    refuse(std::string("state.json: ") + e.what(), path);
  }
  for (const FileBlocks& record : ranks_) check_size(folder / record.name, record);
  for (const FileBlocks& record : weights_) check_size(checkpoint / record.name, record);
}

RankFile::RankFile(const ResumeState& resume, int rank)
    : file_(rank_file_path(resume.checkpoint(), rank, resume.world_size())),
      checked_(file_.path(), resume.ranks()[static_cast<size_t>(rank)]) {
  check_head(file_, checked_);
}

void RankFile::read(const StoredTensor& tensor, size_t begin, std::span<std::byte> to) const {
  checked_.read(offset(tensor) + begin, to);
}

CheckedWeights::CheckedWeights(const ResumeState& resume) : weights_(resume.checkpoint()) {
  for (const SafetensorsFile& file : weights_.files()) {
    const auto record =
        std::find_if(resume.weights().begin(), resume.weights().end(),
                     [&](const FileBlocks& r) { return r.name == file.path().filename().string(); });
    if (record == resume.weights().end()) {
      refuse("the resume state knows nothing of weight file " + file.path().filename().string(), file.path());
    }
    checked_.emplace_back(file.path(), *record);
    check_head(file, checked_.back());
  }
}

void CheckedWeights::read(std::string_view name, std::byte* to) const {
  const StoredTensor* tensor = weights_.stored(name);
  DELTATUNE_ASSERT(tensor != nullptr);
  read_part(name, 0, tensor->size, to);
}

void CheckedWeights::read_part(std::string_view name, size_t begin, size_t bytes, std::byte* to) const {
  const auto [file, offset] = weights_.file_and_offset(name);
  checked_[file].read(offset + begin, {to, bytes});
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
