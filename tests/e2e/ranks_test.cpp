// `--nproc N` on the CPU: runs on several processes train like one process, repeat, stop together, and go on
// with another number of ranks.
#include "e2e/ranks.h"

namespace deltatune {
namespace {

std::vector<double> norms(const fs::path& run) {
  std::vector<double> out;
  for (const json::Value& event : events(run, "step")) out.push_back(event.at("grad_norm").as_number());
  return out;
}

TEST_F(Ranks, ProcessesTrainLikeOne) {
  const Keys more = {{"max_steps", "20"}, {"save_steps", "0"}};
  train(to("of1", 1, 8, more));
  for (const int ranks : {2, 4, 8}) {
    const std::string name = "of" + std::to_string(ranks);
    train(to(name, ranks, 8 / ranks, more));
    expect_close(name, "of1");
    const double norm = norms(folder / "of1").at(0);
    EXPECT_NEAR(norms(folder / name).at(0), norm, 1e-6 * norm) << ranks << " ranks, first gradient";
    train(to(name + "again", ranks, 8 / ranks, more));
    EXPECT_FALSE(bytes(name).empty());
    EXPECT_TRUE(bytes(name) == bytes(name + "again")) << ranks << " ranks do not repeat";
    EXPECT_EQ(step_lines(folder / name), step_lines(folder / (name + "again")));
  }
}

// Rows with 1, 7 and 100 supervised tokens, and rows with none that fill the step up: the loss is the mean
// over tokens, wherever they are.
TEST_F(Ranks, TokensSpreadOverRanksTrainLikeOne) {
  std::string rows;
  for (const int supervised : {1, 7, 100}) {
    std::string ids, labels;
    for (int i = 0; i < 120; ++i) {
      const std::string id = std::to_string(10 + (i * 31 + supervised * 7) % 200), comma = i > 0 ? ", " : "";
      ids += comma + id;
      labels += comma + (i >= 120 - supervised ? id : "-100");
    }
    rows += "{\"input_ids\": [" + ids + "], \"labels\": [" + labels + "]}\n";
  }
  write_text(folder / "rows.jsonl", rows);
  const Keys more = {{"dataset", (folder / "rows.jsonl").string()},
                     {"max_tokens", "128"},
                     {"max_steps", "5"},
                     {"save_steps", "0"}};
  train(to("of1", 1, 8, more));
  EXPECT_EQ(events(folder / "of1", "step").at(0).at("target_tokens").as_integer(), 108);
  for (const int ranks : {2, 4, 8}) {
    const std::string name = "of" + std::to_string(ranks);
    train(to(name, ranks, 8 / ranks, more));
    expect_close(name, "of1");
    const std::vector<double> x = norms(folder / name), y = norms(folder / "of1");
    ASSERT_EQ(x.size(), y.size());
    EXPECT_NEAR(x[0], y[0], 1e-6 * y[0]) << ranks << " ranks, first gradient";
  }
}

// 50 rows do not divide by 3 ranks: the last step is short, nobody waits for ever, and every token is used.
TEST_F(Ranks, UnequalEndsOfData) {
  const Keys more = {{"max_steps", "-1"}, {"num_train_epochs", "1"}, {"save_steps", "0"}};
  train(to("of1", 1, 3, more));
  train(to("of3", 3, 1, more));
  expect_close("of3", "of1");
  const std::vector<json::Value> steps = events(folder / "of3", "step");
  EXPECT_EQ(steps.size(), 17u);
  EXPECT_EQ(events(folder / "of3", "start").at(0).at("total_steps").as_integer(), 17);
  int64_t targets = 0;
  for (const json::Value& step : steps) targets += step.at("target_tokens").as_integer();
  int64_t targets_of_one = 0;
  for (const json::Value& step : events(folder / "of1", "step"))
    targets_of_one += step.at("target_tokens").as_integer();
  EXPECT_EQ(targets, targets_of_one);
  EXPECT_EQ(steps.back().at("epoch").as_number(), 1.0);
}

// Tokens and FLOPs of a step are those of all ranks, those of one device its share.
TEST_F(Ranks, MetersAreSumsOverRanks) {
  const Keys more = {{"max_steps", "4"}, {"save_steps", "0"}};
  train(to("of1", 1, 3, more));
  train(to("of3", 3, 1, more));
  const std::vector<json::Value> one = events(folder / "of1", "step"), three = events(folder / "of3", "step");
  ASSERT_EQ(three.size(), one.size());
  const auto number = [](const json::Value& step, const char* key) { return step.at(key).as_number(); };
  for (size_t i = 0; i < one.size(); ++i) {
    for (const char* key : {"tokens", "real_tokens", "target_tokens", "fill"})
      EXPECT_EQ(number(three[i], key), number(one[i], key)) << key;
    const double seconds = number(three[i], "time_s");
    EXPECT_NEAR(number(three[i], "tokens_per_s_real") * seconds / number(one[i], "real_tokens"), 1, 1e-4);
    EXPECT_NEAR(number(three[i], "tokens_per_s_slots") * seconds / number(one[i], "tokens"), 1, 1e-4);
    EXPECT_NEAR(3 * number(three[i], "tokens_per_s_per_device") / number(three[i], "tokens_per_s"), 1, 1e-4);
    const double flops = number(one[i], "tflops_per_device") * number(one[i], "time_s");
    EXPECT_NEAR(3 * number(three[i], "tflops_per_device") * seconds / flops, 1, 1e-4);
  }
}

TEST_F(Ranks, ResumeOnAnyNumberOfRanks) {
  const Keys more = {{"optim_dtype", "f32"}};
  train(to("straight", 2, 6, more));
  EXPECT_EQ(ResumeState(folder / "straight/checkpoint-3").world_size(), 2);
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string name = "on" + std::to_string(ranks);
    fs::copy(folder / "straight", folder / name, fs::copy_options::recursive);
    fs::remove_all(folder / name / "checkpoint-6");
    train(to(name, ranks, 12 / ranks, with(more, {{"resume_from_checkpoint", "true"}})));
    if (ranks == 2) {
      EXPECT_EQ(step_lines(folder / name), step_lines(folder / "straight"));
      EXPECT_TRUE(bytes(name) == bytes("straight"));
    }
    expect_close(name, "straight");
    EXPECT_EQ(ResumeState(folder / name / "checkpoint-6").world_size(), ranks);
  }
  expect_error(run_verb("train", to("straight", 1, 6, {{"resume_from_checkpoint", "true"}})), 2,
               "12 rows in a step");
}

// A head of its own: rows of the embedding travel in place of its table, where they are fewer.
TEST_F(Ranks, AnEmbeddingOfItsOwnTrainsLikeOneAndResumesOnMore) {
  json::Value config = json::parse_file((model / "config.json").string());
  config.set("tie_word_embeddings", false);
  write_text(model / "config.json", json::dump(config, 2));
  const Keys more = {{"max_tokens", "128"}, {"optim_dtype", "f32"}};
  train(to("of1", 1, 12, more));
  for (const int ranks : {2, 3, 4}) {
    const std::string name = "of" + std::to_string(ranks);
    const Keys these = to(name, ranks, 12 / ranks, more);
    const ProgramResult plan = run_verb("plan", these, "--json");
    ASSERT_EQ(plan.code, 0) << plan.err;
    EXPECT_EQ(json::parse(plan.out, "plan").at("embedding_rows").as_string(), "yes") << ranks;
    train(these);
    expect_close(name, "of1");
    const double norm = norms(folder / "of1").at(0);
    EXPECT_NEAR(norms(folder / name).at(0), norm, 1e-6 * norm) << ranks << " ranks, first gradient";
  }
  for (const int ranks : {2, 3}) {
    const std::string name = "on" + std::to_string(ranks);
    fs::copy(folder / "of2", folder / name, fs::copy_options::recursive);
    fs::remove_all(folder / name / "checkpoint-6");
    train(to(name, ranks, 12 / ranks, with(more, {{"resume_from_checkpoint", "true"}})));
    expect_close(name, "of2");
    if (ranks == 2) {
      EXPECT_TRUE(bytes(name) == bytes("of2"));
    }
  }
}

// With one row a rank the layouts have the same sums: the same bits in the model and in every rank's file.
// Each goes on from a checkpoint of the other, and of another number of ranks.
TEST_F(Ranks, NothingIsCutInShardNone) {
  train(to("full", 3, 1, {{"shard", "full"}}));
  train(to("none", 3, 1, {{"shard", "none"}}));
  EXPECT_TRUE(bytes("none") == bytes("full"));
  const std::vector<json::Value> cut = events(folder / "full", "step"),
                                 whole = events(folder / "none", "step");
  ASSERT_EQ(cut.size(), 6u);
  for (size_t i = 0; i < cut.size(); ++i) {
    for (const char* key : {"loss", "grad_norm"})
      EXPECT_EQ(cut[i].at(key).as_number(), whole.at(i).at(key).as_number()) << key << ", step " << i + 1;
  }
  int files = 0;
  for (const auto& file : fs::recursive_directory_iterator(folder / "full/checkpoint-3")) {
    if (file.path().extension() != ".safetensors") continue;
    const fs::path name = fs::relative(file.path(), folder / "full/checkpoint-3");
    EXPECT_TRUE(slurp(file.path()) == slurp(folder / "none/checkpoint-3" / name)) << name;
    ++files;
  }
  EXPECT_GE(files, 4) << "the model, and each rank's part of the moments once";
  const auto go_on = [&](const std::string& name, const std::string& from, int ranks,
                         const std::string& shard) {
    fs::copy(folder / from, folder / name, fs::copy_options::recursive);
    fs::remove_all(folder / name / "checkpoint-6");
    train(to(name, ranks, 3 / ranks, {{"shard", shard}, {"resume_from_checkpoint", "true"}}));
    EXPECT_EQ(ResumeState(folder / name / "checkpoint-6").world_size(), ranks);
  };
  go_on("full_from_none", "none", 3, "full");
  go_on("none_from_full", "full", 3, "none");
  EXPECT_TRUE(bytes("full_from_none") == bytes("full"));
  EXPECT_TRUE(bytes("none_from_full") == bytes("full"));
  go_on("one_from_none", "none", 1, "none");
  expect_close("one_from_none", "full");
  train(to("one", 1, 3, {}));
  go_on("none_from_one", "one", 3, "none");
  expect_close("none_from_one", "full");
}

TEST_F(Ranks, WhatShardNoneHasNoPlaceForIsRefused) {
  for (const auto& [key, value] : Keys{{"reduce_dtype", "bf16"}, {"offload_optimizer", "true"}}) {
    expect_error(run_verb("train", to("refused", 2, 1, {{"shard", "none"}, {"dtype", "bf16"}, {key, value}})),
                 2, "shard: none");
  }
}

TEST_F(Ranks, SignalsStopAllRanksWithACheckpoint) {
  for (const auto& [signal, code] : std::map<int, int>{{SIGINT, 130}, {SIGTERM, 143}}) {
    const std::string name = "stopped" + std::to_string(code);
    LongRun run(folder, to(name, 2, 1, {{"save_total_limit", "2"}}), folder / name);
    run.child.signal(signal);
    EXPECT_EQ(run.child.wait(), code) << run.child.log();
    const std::string log = run.child.log();
    EXPECT_EQ(count_errors(log), 0) << log;
    EXPECT_NE(log.find("stopped after step"), std::string::npos) << log;
    const auto latest = latest_complete_checkpoint(folder / name);
    ASSERT_TRUE(latest.has_value());
    EXPECT_EQ(ResumeState(latest->path).world_size(), 2);
  }
}

// A library that is missing is exit code 4, and the message names its package.
TEST_F(Ranks, WithoutMpiTheMessageSaysWhatToInstall) {
  const ProgramResult no_mpirun = run_verb("train", to("no_mpirun", 2, 1), "", "PATH=/nowhere");
  expect_error(no_mpirun, 4, "mpirun cannot be started");
  EXPECT_NE(no_mpirun.err.find("openmpi-bin"), std::string::npos) << no_mpirun.err;
  const fs::path alone = folder / "deltatune";  // no plug-in beside it
  fs::copy_file(DELTATUNE_BINARY, alone);
  const fs::path config = write_config(folder / "alone.yaml", to("no_plugin", 2, 1)), log = folder / "log";
  for (const std::string launcher : {"", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"}) {
    const int status = std::system((launcher + " '" + alone.string() + "' train '" + config.string() +
                                    "' 2>'" + log.string() + "' >/dev/null")
                                       .c_str());
    EXPECT_EQ(WEXITSTATUS(status), 4) << slurp(log);
    EXPECT_NE(slurp(log).find("libopenmpi3"), std::string::npos) << slurp(log);
  }
}

TEST_F(Ranks, UnderALauncherNothingIsStarted) {
  // Variables of a launcher that MPI knows nothing of.
  const ProgramResult result =
      run_verb("train", to("alone", 1, 1), "", "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4");
  expect_error(result, 2, "MPI says rank 0 of 1");
  expect_error(run_verb("train", to("alone", 1, 1), "", "RANK=4 WORLD_SIZE=4"), 2, "rank 4 of 4");
}

}  // namespace
}  // namespace deltatune
