// What a save keeps: every byte of a model that took no step; after training, every tensor that is not
// trained, all names, dtypes, shapes and files; and that transformers loads the result and computes the same
// loss.
#include <cmath>

#include "cli/run_binary.h"
#include "comm/communicator.h"
#include "cpu/device.h"
#include "e2e/runs.h"
#include "io/safetensors.h"
#include "train/checkpoint_saver.h"
#include "train/engine.h"

namespace deltatune {
namespace {

const fs::path golden_dir = source_dir / "../shared/golden";

struct Stored {
  std::string file, dtype, bytes;
  std::vector<int64_t> shape;
};

// Every tensor of every safetensors file of a folder.
std::map<std::string, Stored> tensors_of(const fs::path& folder) {
  std::map<std::string, Stored> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    for (const StoredTensor& t : file.tensors()) {
      const auto bytes = file.bytes(t);
      out[t.name] = {entry.path().filename().string(), t.dtype,
                     std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), t.shape};
    }
  }
  return out;
}

bool carried(const std::string& name) {
  return name.starts_with("model.visual.") || name.starts_with("mtp.");
}

// The composite case where it is there, else the text-only one of this repository.
fs::path case_folder() {
  return fs::exists(golden_dir / "narrow_vlm") ? golden_dir / "narrow_vlm"
                                               : source_dir / "tests/golden/tiny_tied";
}

void load_and_save(const fs::path& model, const fs::path& output, DType storage) {
  const ModelSource source = open_model(model.string(), "pretrained");
  const auto device = make_cpu_device();
  const auto comm = make_solo_communicator();
  EngineOptions options;
  options.storage = storage;
  options.tokens = 16;
  Engine engine(*device, *comm, source.config, source.tied, options);
  fill_store(engine.store(), engine.stream(), source, 0);
  fs::create_directories(output);
  CheckpointOptions save;
  save.output_dir = output;
  save.storage = storage;
  CheckpointSaver(engine, source, save).save_model({});
}

TEST(Save, WithoutAStepEveryTensorByteIsTheSame) {
  const TempFolder folder("fidelity");
  const fs::path model = case_folder() / "model";
  for (const DType storage : {DType::f32, DType::bf16}) {
    const fs::path output = folder / name_of(storage);
    load_and_save(model, output, storage);
    const auto before = tensors_of(model), after = tensors_of(output);
    EXPECT_GT(before.size(), 40u);
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [name, tensor] : before) {
      ASSERT_TRUE(after.contains(name)) << name;
      const Stored& other = after.at(name);
      EXPECT_EQ(tensor.file, other.file) << name;
      EXPECT_EQ(tensor.dtype, other.dtype) << name;
      EXPECT_EQ(tensor.shape, other.shape) << name;
      EXPECT_TRUE(tensor.bytes == other.bytes) << name;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(model)) {
      if (entry.path().extension() == ".json" && entry.path().filename() != index_file_name) {
        EXPECT_EQ(slurp(entry.path()), slurp(output / entry.path().filename()));
      }
    }
    if (fs::exists(model / index_file_name)) {
      const json::Value a = json::parse_file((model / index_file_name).string());
      const json::Value b = json::parse_file((output / index_file_name).string());
      EXPECT_EQ(a.at("metadata").at("total_size"), b.at("metadata").at("total_size"));
      for (const auto& [name, file] : a.at("weight_map").as_object())
        EXPECT_EQ(b.at("weight_map").at(name), file) << name;
    }
  }
}

struct Trained {
  fs::path model;  ///< what came out
  Keys eval;       ///< configuration of `deltatune eval` on it
};

// Three steps on a golden case's own sequences.
Trained train_case(const fs::path& golden, const TempFolder& folder, const std::string& name) {
  const fs::path rows = folder / (name + ".jsonl");
  write_text(rows, token_rows(golden / "case.json"));
  const Keys keys = {{"model_name_or_path", (golden / "model").string()},
                     {"dataset", rows.string()},
                     {"output_dir", (folder / name).string()},
                     {"max_length", "512"},
                     {"max_tokens", "512"},
                     {"max_steps", "3"},
                     {"learning_rate", "1e-3"},
                     {"lr_scheduler_type", "constant"},
                     {"dtype", "f32"},
                     {"device", "cpu"}};
  const ProgramResult result = run_verb("train", keys);
  EXPECT_EQ(result.code, 0) << result.err;
  return {folder / name,
          {{"model_name_or_path", (folder / name).string()},
           {"eval_dataset", rows.string()},
           {"max_length", "512"},
           {"max_tokens", "512"},
           {"dtype", "f32"},
           {"device", "cpu"}}};
}

TEST(Save, TrainingChangesTrainedTensorsOnly) {
  const TempFolder folder("trained");
  const fs::path golden = case_folder();
  train_case(golden, folder, "out");
  const auto before = tensors_of(golden / "model"), after = tensors_of(folder / "out");
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before) {
    ASSERT_TRUE(after.contains(name)) << name;
    const Stored& other = after.at(name);
    EXPECT_EQ(tensor.file, other.file) << name;
    EXPECT_EQ(tensor.dtype, other.dtype) << name;
    EXPECT_EQ(tensor.shape, other.shape) << name;
    EXPECT_EQ(tensor.bytes == other.bytes, carried(name)) << name;
  }
}

// A head of its own is a tensor, one that is the embedding is none, and config.json says which.
TEST(Save, TheHeadIsWrittenWhereItIsNotTheEmbedding) {
  for (const bool tied : {true, false}) {
    const TempFolder folder(tied ? "tied" : "untied");
    write_small_model(folder / "model");
    json::Value config = json::parse_file((folder / "model/config.json").string());
    config.set("tie_word_embeddings", tied);
    write_text(folder / "model/config.json", json::dump(config, 2));
    const Keys keys =
        with(small_keys(folder / "model", folder / "out"), {{"max_steps", "3"}, {"save_steps", "0"}});
    const ProgramResult result = run_verb("train", keys);
    ASSERT_EQ(result.code, 0) << result.err;
    const auto tensors = tensors_of(folder / "out");
    EXPECT_EQ(tensors.contains("lm_head.weight"), !tied);
    ASSERT_TRUE(tensors.contains("model.embed_tokens.weight"));
    if (!tied) {
      EXPECT_NE(tensors.at("lm_head.weight").bytes, tensors.at("model.embed_tokens.weight").bytes);
    }
    const json::Value written = json::parse_file((folder / "out/config.json").string());
    EXPECT_EQ(written.at("tie_word_embeddings").as_bool(), tied);
    const Keys again = {{"model_name_or_path", (folder / "out").string()},
                        {"eval_dataset", (source_dir / "examples/demo/eval.jsonl").string()},
                        {"max_length", "128"},
                        {"max_tokens", "256"},
                        {"device", "cpu"}};
    const ProgramResult trained = run_verb("eval", again, "--json");
    EXPECT_EQ(trained.code, 0);
    // The configuration of a training from random weights evaluates what it made.
    const ProgramResult same = run_verb("eval", with(again, {{"init", "random"}}), "--json");
    EXPECT_EQ(same.code, 0);
    EXPECT_NE(same.err.find("init: random is for training"), std::string::npos) << same.err;
    const auto loss = [](const ProgramResult& of) {
      return json::parse(of.out, "eval").at("eval_loss").as_number();
    };
    EXPECT_EQ(loss(same), loss(trained));
    fs::remove(folder / "out/model.safetensors");
    const ProgramResult random = run_verb("eval", with(again, {{"init", "random"}}), "--json");
    EXPECT_EQ(random.code, 0);
    EXPECT_NE(random.err.find("has no weights: random ones are used"), std::string::npos) << random.err;
    EXPECT_NE(loss(random), loss(trained));
  }
}

// --- transformers, where there is a Python that has it ---

std::string oracle_python() {
  std::vector<std::string> candidates = {"python3"};
  if (const char* named = std::getenv("DELTATUNE_PYTHON")) candidates.insert(candidates.begin(), named);
  for (const std::string& python : candidates) {
    const std::string command =
        "'" + python + "' -c 'import torch, transformers; transformers.Qwen3_5ForCausalLM' >/dev/null 2>&1";
    if (std::system(command.c_str()) == 0) return python;
  }
  return {};
}

TEST(Save, TransformersLoadsItAndComputesTheSameLoss) {
  const std::string python = oracle_python();
  if (python.empty())
    GTEST_SKIP() << "no python3 (or DELTATUNE_PYTHON) with torch and transformers' Qwen3_5 models";
  const TempFolder folder("transformers");
  std::vector<Trained> models = {train_case(source_dir / "tests/golden/tiny_tied", folder, "tiny_tied")};
  if (fs::exists(golden_dir / "narrow_vlm"))
    models.push_back(train_case(golden_dir / "narrow_vlm", folder, "narrow_vlm"));
  // A model that started from the initialiser, on conversations it has not seen.
  write_small_model(folder / "small");
  ASSERT_EQ(run_verb("train", with(small_keys(folder / "small", folder / "demo"), {{"dtype", "f32"}})).code,
            0);
  const Keys held_out = {{"model_name_or_path", (folder / "demo").string()},
                         {"dataset", (source_dir / "examples/demo/eval.jsonl").string()},
                         {"max_length", "128"},
                         {"max_tokens", "512"}};
  write_text(folder / "demo.jsonl", run_verb("data show", held_out, "--json --rows 1000").out);
  models.push_back({folder / "demo",
                    {{"model_name_or_path", (folder / "demo").string()},
                     {"eval_dataset", (folder / "demo.jsonl").string()},
                     {"max_length", "128"},
                     {"max_tokens", "512"},
                     {"dtype", "f32"},
                     {"device", "cpu"}}});
  std::string command = "'" + python + "' '" + (source_dir / "tests/e2e/hf_load_check.py").string() + "'";
  for (const Trained& t : models)
    command += " '" + t.model.string() + "' '" + t.eval.at("eval_dataset") + "'";
  command += " >'" + (folder / "out.json").string() + "' 2>'" + (folder / "err").string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << slurp(folder / "err");
  const json::Value results = json::parse_file((folder / "out.json").string());
  ASSERT_EQ(results.as_array().size(), models.size());
  for (size_t i = 0; i < models.size(); ++i) {
    const json::Value& theirs = results.as_array()[i];
    EXPECT_TRUE(theirs.at("missing").as_array().empty()) << json::dump(theirs);
    EXPECT_TRUE(theirs.at("unexpected").as_array().empty()) << json::dump(theirs);
    const ProgramResult result = run_verb("eval", models[i].eval, "--json");
    ASSERT_EQ(result.code, 0) << result.err;
    const json::Value ours = json::parse(result.out, "eval");
    EXPECT_EQ(ours.at("target_tokens"), theirs.at("targets"));
    const double loss = theirs.at("loss").as_number();
    EXPECT_NEAR(ours.at("eval_loss").as_number(), loss, 1e-5 * loss) << models[i].model;
    std::printf("%-12s %s: loss %.9f, here %.9f, relative difference %.2e\n",
                models[i].model.filename().c_str(), theirs.at("class").as_string().c_str(), loss,
                ours.at("eval_loss").as_number(), std::abs(ours.at("eval_loss").as_number() / loss - 1));
  }
}

}  // namespace
}  // namespace deltatune
