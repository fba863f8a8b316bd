// From a configuration to a run: planned against allocated bytes, the recompute policy by budget, sizes,
// output folders, held-out rows, decay.
#include "train/setup.h"

#include <gtest/gtest.h>

#include <set>

#include "base/clock.h"
#include "data/hold_out.h"
#include "io/test_files.h"
#include "ops/null_device.h"
#include "train/output_folder.h"
#include "train/plan.h"
#include "train/recompute.h"
#include "train/tiny_engine.h"

namespace deltatune {
namespace {

const fs::path source_dir = DELTATUNE_SOURCE_DIR;

Config small_config(const char* dtype, const char* recompute, int64_t tokens) {
  Config c;
  c.init = "random";
  c.dtype = dtype;
  c.recompute = recompute;
  c.max_tokens = tokens;
  c.max_length = tokens;
  return c;
}

// What plan says, what the device handed out, and that steps ask for no more.
void check_plan(const Config& config) {
  const ModelSource source = open_model(config.model_name_or_path, "random");
  const PlanReport plan = make_plan(config, source, std::nullopt);
  ASSERT_NE(config.recompute, "auto");
  const auto device = make_cpu_device();
  const auto comm = make_solo_communicator();
  Engine engine(*device, *comm, source.config, source.tied,
                engine_options(config, keep_of(config.recompute), true));
  EXPECT_EQ(plan.memory.total(), device->allocated_bytes());
  EXPECT_EQ(plan.memory.total(), device->plan().total());
  ASSERT_EQ(plan.memory.regions().size(), device->plan().regions().size());
  for (size_t i = 0; i < plan.memory.regions().size(); ++i)
    EXPECT_EQ(plan.memory.regions()[i].bytes, device->plan().regions()[i].bytes)
        << plan.memory.regions()[i].name;
  const uint64_t allocations = device->allocation_count();
  fill_store(engine.store(), engine.stream(), source, 1);
  const Batch batch = synthetic_batch(config.max_tokens, 48, engine.options().max_documents);
  for (int step = 1; step <= 2; ++step) {
    engine.begin_window();
    engine.micro_step(batch);
    EXPECT_FALSE(engine.update(1e-4, step, batch.num_targets).nonfinite);
  }
  EXPECT_EQ(device->allocation_count(), allocations);
  EXPECT_EQ(plan.memory.total(), device->allocated_bytes());
}

TEST(PlanTest, EqualsWhatIsAllocatedTinyF32) {
  Config config = small_config("f32", "none", 200);
  config.model_name_or_path = (source_dir / "tests/golden/tiny_tied/model").string();
  check_plan(config);
}
TEST(PlanTest, EqualsWhatIsAllocatedTinyBf16Recomputed) {
  Config config = small_config("bf16", "block", 333);
  config.model_name_or_path = (source_dir / "tests/golden/tiny_tied/model").string();
  check_plan(config);
}
TEST(PlanTest, EqualsWhatIsAllocatedDemo) {
  Config config = small_config("f32", "cheap", 128);
  config.model_name_or_path = (source_dir / "examples/demo/model").string();
  check_plan(config);
}

TEST(PlanTest, CountsTheFlopsOfTheMatrixProducts) {
  Config config = small_config("f32", "none", 128);
  config.model_name_or_path = (source_dir / "tests/golden/tiny_tied/model").string();
  const ModelSource source = open_model(config.model_name_or_path, "random");
  const PlanReport plan = make_plan(config, source, std::nullopt);
  // Forward and two backward products per weight; the head sees supervised rows only. The convolution and the
  // vectors are no matrix products.
  double weights = 0, head = 0;
  const ModelParams params = make_params(source.config, source.tied);
  for (const Param& p : params.table.params) {
    if (p.shape.rank != 2 || p.name.ends_with("conv")) continue;
    (p.name == "embedding" ? head : weights) += static_cast<double>(p.shape.count());
  }
  double flops = 0;
  for (const PlannedOp& op : plan.ops) flops += op.name == "matmul" ? op.flops : 0;
  const double rows = 127;  // one document of 128 tokens
  EXPECT_NEAR(flops, 6 * (weights * 128 + head * rows), 1e-9 * flops);
}

TEST(PlanTest, OfThe27BOnEightDevicesIsQuick) {
  Config config = small_config("bf16", "block", 16384);
  config.model_name_or_path = (source_dir / "examples/configs/models/qwen3.8-27b").string();
  config.nproc = 8;
  const Stopwatch clock;
  const ModelSource source = open_model(config.model_name_or_path, "random");
  const PlanReport plan = make_plan(config, source, device_card("h200"));
  EXPECT_LT(clock.seconds(), 5);
  EXPECT_EQ(plan.parameters, 26895998464);
  EXPECT_EQ(plan.world_size, 8);
  // Weights bf16, master, gradient, m and v in f32: 18 bytes per parameter over 8 devices.
  size_t state = 0;
  for (const Region& region : plan.memory.regions()) {
    if (region.lifetime == Lifetime::run && region.owner == "parameters") state += region.bytes;
  }
  EXPECT_NEAR(static_cast<double>(state), 18.0 * 26895998464.0 / 8, 1e-3 * 18.0 * 26895998464.0 / 8);
  EXPECT_GT(plan.seconds(), 0);
}

TEST(ChooseKeepTest, AutoFillsTheBudget) {
  Config config = small_config("f32", "auto", 256);
  config.model_name_or_path = (source_dir / "tests/golden/tiny_tied/model").string();
  const ModelSource source = open_model(config.model_name_or_path, "random");
  const auto bytes = [&](const char* policy) {
    Config fixed = config;
    fixed.recompute = policy;
    const KeepChoice choice = choose_keep(fixed, source, DeviceFacts{}, 1, 0);
    EXPECT_EQ(choice.name, policy) << "a named policy is used whatever it costs";
    return choice.plan_bytes;
  };
  const size_t none = bytes("none"), cheap = bytes("cheap"), block = bytes("block");
  EXPECT_GT(none, cheap);
  EXPECT_GT(cheap, block);
  const uint64_t margin = recompute_margin(Target::cpu);
  const auto chosen = [&](uint64_t room) {
    return choose_keep(config, source, DeviceFacts{}, 1, room + margin);
  };
  EXPECT_EQ(chosen(none).name, "none");
  EXPECT_EQ(chosen(none).recompute_seconds, 0);
  EXPECT_EQ(chosen(none - 1).name, "auto");
  // A block whose slots are more than the other's can keep some of them where they would lie anyway.
  EXPECT_LE(chosen(block).plan_bytes, block);
  EXPECT_EQ(choose_keep(config, source, DeviceFacts{}, 1, 0).name, "block")
      << "the smallest, for the message that it does not fit";
  double seconds = chosen(block).block_seconds;
  size_t bytes_before = 0;
  for (int i = 1; i <= 20; ++i) {
    const size_t budget = block + (none - block) * static_cast<size_t>(i) / 20;
    const KeepChoice choice = chosen(budget);
    EXPECT_LE(choice.plan_bytes, budget);
    EXPECT_GE(choice.plan_bytes, bytes_before) << "more memory, more of it used";
    EXPECT_LE(choice.recompute_seconds, seconds) << "more memory, less to compute again";
    seconds = choice.recompute_seconds;
    bytes_before = choice.plan_bytes;
    // The plan of the choice is what an engine with it takes.
    const auto device = make_cpu_device();
    const auto comm = make_solo_communicator();
    const Engine engine(*device, *comm, source.config, source.tied,
                        engine_options(config, choice.keep, true));
    EXPECT_EQ(device->allocated_bytes(), choice.plan_bytes);
  }
}

// What is worth most per byte goes first: the residual in the middle saves out_proj for the bytes of one
// hidden state, and q, k, v cost little to make again.
TEST(ChooseKeepTest, TheOrderOfThe27B) {
  Config config = small_config("bf16", "auto", 8192);
  config.model_name_or_path = (source_dir / "examples/configs/models/qwen3.8-27b").string();
  config.max_documents = 20;
  config.max_length = 1240;
  config.nproc = 8;
  const ModelSource source = open_model(config.model_name_or_path, "random");
  Config block = config;
  block.recompute = "block";
  const KeepChoice none = choose_keep(block, source, planned_cuda(90), 8, 0);
  EXPECT_EQ(none.name, "block");
  const auto with_gib = [&](double gib) {
    const auto more = static_cast<uint64_t>(gib * double(1 << 30));
    return choose_keep(config, source, planned_cuda(90), 8,
                       none.plan_bytes + more + recompute_margin(Target::cuda));
  };
  const KeepChoice five = with_gib(5.1);
  EXPECT_EQ(five.blocks.at("mid"), 64);
  // out_proj of 64 blocks: 64 x 652 us at 790 TFLOP/s.
  EXPECT_NEAR(five.block_seconds - five.recompute_seconds, 0.0417, 0.003);
  KeepChoice twenty = with_gib(20);
  EXPECT_EQ(twenty.blocks.at("mid"), 64);
  EXPECT_GT(twenty.blocks.at("gate_up") + twenty.blocks["projection"], 25);
  EXPECT_LE(twenty.blocks["prologue"], 1) << "only in what is left at the end";
}

TEST(DescribeDecayTest, NamesWhatIsExempt) {
  const ModelParams params = make_params(tiny_config(true), true);
  EXPECT_EQ(describe_decay(params.table, 0), "weight decay is 0");
  EXPECT_EQ(describe_decay(params.table, 0.1),
            "weight decay 0.1 on all parameters but A_log (1), dt_bias (1), final_norm (1), gated_norm (1), "
            "input_norm (2), k_norm (1), post_norm (2), q_norm (1)");
}

TEST(ParseBytesTest, SizesAndMistakes) {
  EXPECT_EQ(parse_bytes("5GB"), 5'000'000'000);
  EXPECT_EQ(parse_bytes("500MB"), 500'000'000);
  EXPECT_EQ(parse_bytes("1.5KB"), 1500);
  EXPECT_EQ(parse_bytes("2 TB"), 2'000'000'000'000);
  EXPECT_EQ(parse_bytes("1KiB"), 1024);
  EXPECT_EQ(parse_bytes("3GiB"), int64_t{3} << 30);
  EXPECT_EQ(parse_bytes("123"), 123);
  EXPECT_EQ(parse_bytes("123B"), 123);
  for (const char* bad : {"", "GB", "-1GB", "0", "5XB", "5 G B", "nan", "inf", "1e30TB", "5GBB", "0.1B"}) {
    const std::string text = error_text(ErrorKind::usage, [&] { parse_bytes(bad); });
    EXPECT_TRUE(has(text, std::string("\"") + bad + "\"")) << bad << ": " << text;
  }
}

TEST(OutputFolderTest, ARunIsNotOverwrittenUnasked) {
  const TempFolder folder("output");
  Config config;
  config.output_dir = (folder / "run").string();
  prepare_output_folder(config, false);
  EXPECT_TRUE(fs::is_directory(folder / "run"));
  EXPECT_TRUE(fs::is_empty(folder / "run"));
  write_text(folder / "run/notes.txt", "mine");
  prepare_output_folder(config, false);
  write_text(folder / "run/metrics.jsonl", "{}\n");
  write_text(folder / "run/checkpoint-3/config.json", "{}");
  EXPECT_TRUE(
      has(error_text(ErrorKind::usage, [&] { prepare_output_folder(config, false); }), "already holds"));
  prepare_output_folder(config, true);
  EXPECT_TRUE(fs::exists(folder / "run/metrics.jsonl"));
  config.resume_from_checkpoint = "true";
  prepare_output_folder(config, false);
  EXPECT_TRUE(fs::exists(folder / "run/checkpoint-3/config.json"));
  config.resume_from_checkpoint.clear();
  config.overwrite_output_dir = true;
  prepare_output_folder(config, false);
  EXPECT_TRUE(fs::exists(folder / "run/checkpoint-3")) << "nothing goes before model and data are loaded";
  remove_previous_run(config.output_dir);
  EXPECT_FALSE(fs::exists(folder / "run/metrics.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "run/checkpoint-3"));
  EXPECT_TRUE(fs::exists(folder / "run/notes.txt"));
}

TEST(OutputFolderTest, ForeignWeightsAndInputsAreKept) {
  const TempFolder folder("output_keep");
  Config config;
  config.output_dir = (folder / "run").string();
  write_text(folder / "run/model-00001-of-00001.safetensors", "weights of someone");
  const auto refusal = [&] {
    return error_text(ErrorKind::usage, [&] { prepare_output_folder(config, false); });
  };
  EXPECT_TRUE(has(refusal(), "already holds a model"));
  config.resume_from_checkpoint = "true";
  EXPECT_TRUE(has(refusal(), "already holds a model"));
  // A finished run that has saved nothing on its way: there is nothing to go on from, and its model stays.
  write_text(folder / "run/metrics.jsonl", "{}");
  EXPECT_TRUE(has(refusal(), "no checkpoint to go on from"));
  fs::remove(folder / "run/metrics.jsonl");
  config.resume_from_checkpoint.clear();
  config.overwrite_output_dir = true;
  prepare_output_folder(config, false);
  write_text(folder / "run/checkpoint-3/config.json", "{}");
  config.model_name_or_path = (folder / "run/checkpoint-3").string();
  EXPECT_TRUE(has(refusal(), "would delete the input"));
  config.model_name_or_path = (folder / "elsewhere").string();
  config.tokenizer_name_or_path = (folder / "run/../run/checkpoint-3").string();
  EXPECT_TRUE(has(refusal(), "would delete the input"));
  config.tokenizer_name_or_path = (folder / "run").string();
  EXPECT_TRUE(has(refusal(), "input model"));
}

TEST(OutputFolderTest, RefusesWhatCannotBeOne) {
  const TempFolder folder("output_bad");
  Config config;
  EXPECT_TRUE(has(error_text(ErrorKind::usage, [&] { prepare_output_folder(config, false); }), "output_dir"));
  config.output_dir = folder.path().string();
  config.model_name_or_path = (folder.path() / ".").string();
  EXPECT_TRUE(
      has(error_text(ErrorKind::usage, [&] { prepare_output_folder(config, false); }), "input model"));
  write_text(folder / "file", "x");
  for (const std::string& bad : {(folder / "file/run").string(), (folder / "file").string(),
                                 (folder / std::string(300, 'a')).string()}) {
    config.output_dir = bad;
    EXPECT_FALSE(error_text(ErrorKind::resource, [&] { prepare_output_folder(config, false); }).empty());
  }
}

TEST(HoldOutTest, ASplitOfTheSet) {
  std::vector<Document> documents;
  for (int i = 0; i < 40; ++i)
    documents.push_back(random_document(2 + i % 5, 1, 24, static_cast<uint64_t>(i)));
  for (size_t i = 0; i < documents.size(); ++i) documents[i].ids[0] = static_cast<int32_t>(i) + 100;
  const TokenizedSet set = set_of(documents, 64);
  const auto heads = [](const TokenizedSet& s) {
    std::vector<int32_t> out;
    for (int64_t i = 0; i < s.size(); ++i) out.push_back(s.ids(i)[0]);
    return out;
  };
  for (const auto& [size, count] :
       std::vector<std::pair<double, int64_t>>{{0.1, 4}, {0.01, 1}, {7, 7}, {39, 39}}) {
    const auto [train, held] = hold_out(set, size, 42);
    EXPECT_EQ(held.size(), count);
    EXPECT_EQ(train.size() + held.size(), set.size());
    std::multiset<int32_t> all;
    for (const int32_t id : heads(train)) all.insert(id);
    for (const int32_t id : heads(held)) all.insert(id);
    const std::vector<int32_t> whole = heads(set);
    EXPECT_EQ(all, std::multiset<int32_t>(whole.begin(), whole.end()));
    const auto again = hold_out(set, size, 42);
    EXPECT_EQ(heads(again.second), heads(held));
  }
  EXPECT_NE(heads(hold_out(set, 7, 42).second), heads(hold_out(set, 7, 43).second));
  for (const double size : {40.0, 41.0, 1e9})
    EXPECT_FALSE(error_text(ErrorKind::usage, [&] { hold_out(set, size, 42); }).empty());
}

}  // namespace
}  // namespace deltatune
