// Resume state, checkpoint bookkeeping, trainer_state.json.
#include "io/resume.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/safetensors_head.h"
#include "io/test_files.h"
#include "io/trainer_state.h"

namespace deltatune {
namespace {

json::Value example_state() {
  json::Value state;
  state.set("step", 12);
  state.set("lr", 0.1 + 0.2);
  state.set("loss", std::nan(""));
  state.set("cursor", json::Array{1, 2, 3});
  return state;
}

MemorySource example_tensors(int rank) {
  MemorySource values;
  values.put("master", {3}, {1.0f * static_cast<float>(rank), 2, 3});
  values.put("m", DType::bf16, {2}, std::vector<std::byte>(4, std::byte{7}));
  values.put("rng", DType::i64, {1}, std::vector<std::byte>(8, std::byte{1}));
  return values;
}

// Writes a file; every tensor, and the head, is a block.
FileBlocks write_blocks(const fs::path& path, const MemorySource& values) {
  std::vector<PlannedTensor> plan;
  for (const TensorInfo& info : values.infos())
    plan.push_back({info.name, safetensors_name(info.dtype), info.shape});
  const std::vector<StoredTensor> tensors = place_tensors(plan);
  std::string text = safetensors_head(tensors, {});
  FileBlocks out{path.filename().string(), 0, {{0, text.size(), block_hash(std::as_bytes(std::span(text)))}}};
  for (const StoredTensor& tensor : tensors) {
    std::vector<std::byte> bytes(tensor.size);
    values.read(tensor.name, bytes.data());
    out.blocks.push_back({text.size(), bytes.size(), block_hash(bytes)});
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  out.size = text.size();
  write_text(path, text);
  return out;
}

void write_example(const fs::path& checkpoint, int world_size) {
  std::vector<FileBlocks> ranks;
  for (int rank = 0; rank < world_size; ++rank)
    ranks.push_back(write_blocks(rank_file_path(checkpoint, rank, world_size), example_tensors(rank)));
  MemorySource weights;
  weights.put("w", {2}, {1, 2});
  const std::vector<FileBlocks> files{write_blocks(checkpoint / "model.safetensors", weights)};
  write_text(checkpoint / "config.json", "{}");
  write_resume_state(checkpoint, example_state(), ranks, files);
}

std::string problem_of(const fs::path& checkpoint) {
  return error_text(ErrorKind::model, [&] {
    const ResumeState state(checkpoint);
    std::vector<std::byte> bytes;
    for (int rank = 0; rank < state.world_size(); ++rank) {
      const RankFile file(state, rank);
      for (const TensorInfo& info : example_tensors(rank).infos()) {
        bytes.resize(file.find(info.name)->size);
        file.read(*file.find(info.name), 0, bytes);
      }
    }
    bytes.resize(8);
    CheckedWeights(state).read("w", bytes.data());
  });
}

void replace_in(const fs::path& path, const std::string& old, const std::string& fresh) {
  std::string text = read_file(path);
  const size_t at = text.find(old);
  ASSERT_NE(at, std::string::npos);
  write_text(path, text.replace(at, old.size(), fresh));
}

TEST(ResumeState, ComesBackExactly) {
  const TempFolder dir("resume");
  write_example(dir.path(), 2);
  EXPECT_TRUE(fs::exists(dir / "deltatune" / "rank-00001-of-00002.safetensors"));
  const ResumeState state(dir.path());
  EXPECT_EQ(state.world_size(), 2);
  EXPECT_EQ(state.state().at("step").as_integer(), 12);
  EXPECT_EQ(state.state().at("lr").as_number(), 0.1 + 0.2);
  for (int rank = 0; rank < 2; ++rank) {
    const RankFile file(state, rank);
    const float expected[]{1.0f * static_cast<float>(rank), 2, 3};
    float read[3];
    file.read(*file.find("master"), 0, std::as_writable_bytes(std::span(read)));
    EXPECT_EQ(std::memcmp(read, expected, sizeof expected), 0);
    // Parts of blocks are checked too.
    file.read(*file.find("master"), 4, std::as_writable_bytes(std::span(read)).first(4));
    EXPECT_EQ(read[0], 2);
    EXPECT_EQ(file.find("m")->dtype, "BF16");
    EXPECT_EQ(file.find("rng")->dtype, "I64");
  }
  float w[2];
  CheckedWeights(state).read("w", reinterpret_cast<std::byte*>(w));
  EXPECT_EQ(w[1], 2);
}

TEST(ResumeState, EveryDefectIsNamed) {
  const TempFolder dir("resume_bad");
  const fs::path state = dir / "deltatune" / "state.json";
  const fs::path rank = dir / "deltatune" / "rank-00001-of-00002.safetensors";
  EXPECT_TRUE(has(problem_of(dir.path()), "no resume state"));
  const auto fresh = [&] {
    fs::remove_all(dir / "deltatune");
    write_example(dir.path(), 2);
    EXPECT_EQ(problem_of(dir.path()), "");
  };
  fresh();
  fs::remove(rank);
  EXPECT_TRUE(has(problem_of(dir.path()), "missing resume file rank-00001-of-00002.safetensors"));
  fresh();
  const std::string whole = read_file(rank);
  write_text(rank, whole.substr(0, whole.size() - 1));
  EXPECT_TRUE(has(problem_of(dir.path()), "bytes, " + std::to_string(whole.size()) + " were written"));
  std::string flipped = whole;
  flipped.back() ^= 1;
  write_text(rank, flipped);
  EXPECT_TRUE(has(problem_of(dir.path()), "rank-00001-of-00002.safetensors was altered"));
  fresh();
  flipped = whole;
  flipped[whole.find("master")] = 'M';
  write_text(rank, flipped);
  EXPECT_TRUE(has(problem_of(dir.path()), "rank-00001-of-00002.safetensors was altered"));
  fresh();
  std::string weights = read_file(dir / "model.safetensors");
  weights.back() ^= 1;
  write_text(dir / "model.safetensors", weights);
  EXPECT_TRUE(has(problem_of(dir.path()), "model.safetensors was altered"));
  fresh();
  replace_in(state, "\"version\": 2", "\"version\": 3");
  EXPECT_TRUE(has(problem_of(dir.path()), "format version 3, this program reads version 2"));
  fresh();
  replace_in(state, "\"blocks\": [[0, ", "\"blocks\": [[1, ");
  EXPECT_TRUE(has(problem_of(dir.path()), "is not possible"));
  fresh();
  replace_in(state, "\"blocks\": [[0, ", "\"blocks\": [[-1, ");
  EXPECT_TRUE(has(problem_of(dir.path()), "negative number"));
  fresh();
  replace_in(state, "\"step\": 12", "\"step\": 13");
  EXPECT_TRUE(has(problem_of(dir.path()), "state.json was altered"));
  fresh();
  replace_in(state, "\"world_size\": 2", "\"world_size\": 3");
  EXPECT_TRUE(has(problem_of(dir.path()), "world_size is 3, but 2 files"));
  fresh();
  replace_in(state, "rank-00000-of-00002", "../../etc/passwd");
  EXPECT_TRUE(has(problem_of(dir.path()), "is called"));
  fresh();
  const std::string text = read_file(state);
  for (size_t n = 0; n + 1 < text.size(); ++n) {
    write_text(state, text.substr(0, n));
    EXPECT_NE(problem_of(dir.path()), "") << n;
  }
}

void write_checkpoint(const fs::path& folder) {
  write_example(folder, 1);
}

TEST(Checkpoints, LatestCompleteOneIsFound) {
  const TempFolder dir("latest");
  EXPECT_FALSE(latest_complete_checkpoint(dir.path()));
  EXPECT_FALSE(latest_complete_checkpoint(dir / "absent"));
  for (const char* name :
       {"checkpoint-9", "checkpoint-10", "checkpoint-100", "checkpoint-200", "checkpoint-300.tmp"}) {
    write_checkpoint(dir / name);
  }
  EXPECT_EQ(latest_complete_checkpoint(dir.path())->step, 200);
  fs::remove(dir / "checkpoint-200" / "deltatune" / "state.json");
  fs::resize_file(dir / "checkpoint-100" / "model.safetensors", 20);
  EXPECT_EQ(latest_complete_checkpoint(dir.path())->step, 10);
  EXPECT_EQ(latest_complete_checkpoint(dir.path())->path, dir / "checkpoint-10");
}

TEST(Checkpoints, PruningKeepsTheNewestAndTheKept) {
  const TempFolder dir("prune");
  const auto steps = [&] {
    std::vector<int> out;
    for (const int step : {5, 10, 15, 20, 100}) {
      if (fs::exists(dir / ("checkpoint-" + std::to_string(step)))) out.push_back(step);
    }
    return out;
  };
  for (const int step : {5, 10, 15, 20, 100}) write_checkpoint(dir / ("checkpoint-" + std::to_string(step)));
  prune_checkpoints(dir.path(), 0);
  prune_checkpoints(dir.path(), 5);
  EXPECT_EQ(steps().size(), 5u);
  const std::vector<fs::path> keep{dir / "checkpoint-5"};
  prune_checkpoints(dir.path(), 3, keep);
  EXPECT_EQ(steps(), (std::vector<int>{5, 20, 100}));
  // Nothing goes while the newest is incomplete.
  fs::remove(dir / "checkpoint-100" / "deltatune" / "rank-00000-of-00001.safetensors");
  prune_checkpoints(dir.path(), 1);
  EXPECT_EQ(steps(), (std::vector<int>{5, 20, 100}));
  fs::remove_all(dir / "checkpoint-100" / "deltatune");  // save_only_model: no resume state is wanted
  prune_checkpoints(dir.path(), 1);
  EXPECT_EQ(steps(), (std::vector<int>{100}));
}

TEST(TrainerStateFile, HasTransformersKeysAndComesBack) {
  const TempFolder dir("trainer_state");
  TrainerState state;
  state.epoch = 0.5;
  state.global_step = 20;
  state.max_steps = 40;
  state.total_flos = 1.5e15;
  state.best_metric = 1.25;
  state.best_model_checkpoint = "out/checkpoint-20";
  state.log_history = {{0.25, 10, {{"loss", 2.5}, {"grad_norm", 0.75}, {"learning_rate", 1e-5}}},
                       {0.5, 20, {{"loss", std::nan("")}}},
                       {0.5, 20, {{"eval_loss", 1.25}, {"eval_runtime", 3.5}}}};
  write_trainer_state(dir.path(), state);
  const json::Value root = json::parse_file((dir / "trainer_state.json").string());
  std::vector<std::string> keys;
  for (const auto& [key, value] : root.as_object()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"best_global_step",
                                            "best_metric",
                                            "best_model_checkpoint",
                                            "epoch",
                                            "eval_steps",
                                            "global_step",
                                            "is_hyper_param_search",
                                            "is_local_process_zero",
                                            "is_world_process_zero",
                                            "log_history",
                                            "logging_steps",
                                            "max_steps",
                                            "num_input_tokens_seen",
                                            "num_train_epochs",
                                            "save_steps",
                                            "stateful_callbacks",
                                            "total_flos",
                                            "train_batch_size",
                                            "trial_name",
                                            "trial_params"}));
  EXPECT_EQ(json::dump(root.at("log_history").as_array()[0]),
            R"({"epoch": 0.25, "grad_norm": 0.75, "learning_rate": 1e-05, "loss": 2.5, "step": 10})");
  const TrainerState back = read_trainer_state(dir.path());
  EXPECT_EQ(back.global_step, 20);
  EXPECT_EQ(back.max_steps, 40);
  EXPECT_EQ(back.total_flos, 1.5e15);
  EXPECT_EQ(back.best_metric, 1.25);
  EXPECT_FALSE(back.best_global_step);
  ASSERT_EQ(back.log_history.size(), 3u);
  EXPECT_EQ(back.log_history[0].step, 10);
  EXPECT_EQ(back.log_history[0].values.size(), 3u);
  EXPECT_TRUE(std::isnan(back.log_history[1].values[0].second));
  EXPECT_EQ(back.log_history[2].values[0].first, "eval_loss");
  for (const char* bad : {"", "[]", "{\"epoch\":\"x\"}", "{\"log_history\":[1]}", "{\"log_history\":{}}"}) {
    write_text(dir / "trainer_state.json", bad);
    EXPECT_TRUE(
        has(error_text(ErrorKind::model, [&] { read_trainer_state(dir.path()); }), "trainer_state.json"))
        << bad;
  }
  write_text(
      dir / "trainer_state.json",
      R"({"logging_steps":0.1,"save_steps":1e300,"unknown":[],"log_history":[{"step":1,"note":"x"}]})");
  EXPECT_EQ(read_trainer_state(dir.path()).logging_steps, 0);
}

}  // namespace
}  // namespace deltatune
