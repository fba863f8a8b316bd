// What the program says about kernels: `plan` names them for a device it does not have, `bench op` times
// them.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/json.h"
#include "cli/run_binary.h"

namespace deltatune {
namespace {

const std::string model = DELTATUNE_SOURCE_DIR "/tests/golden/tiny_tied/model";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

json::Value plan(const std::string& more) {
  const ProgramResult result =
      run_deltatune("plan --model_name_or_path " + model + " --max_tokens 256 --json " + more);
  EXPECT_EQ(result.code, 0) << result.err;
  return json::parse(result.out, "plan");
}

const json::Value& op_of(const json::Value& plan, const std::string& name) {
  for (const json::Value& op : plan.at("ops").as_array()) {
    if (op.at("op").as_string() == name) return op;
  }
  ADD_FAILURE() << name;
  return plan.at("ops").as_array().front();
}

TEST(KernelsVerbs, PlanNamesTheKernelsOfTheDevice) {
  const json::Value h200 = plan("--device h200");
  EXPECT_EQ(op_of(h200, "matmul").at("kernel").as_string(), "cublaslt");
  EXPECT_EQ(op_of(h200, "matmul").find("slow_kernels"), nullptr);
  // Heads of 32: nothing but the plain kernel takes them.
  EXPECT_EQ(op_of(h200, "attention_forward").at("kernel").as_string(), "plain");
  EXPECT_TRUE(op_of(h200, "attention_forward").at("slow_kernels").as_bool());
  EXPECT_EQ(op_of(plan(""), "matmul").at("kernel").as_string(), "cpu");
  const ProgramResult text =
      run_deltatune("plan --model_name_or_path " + model + " --max_tokens 256 --device h200");
  EXPECT_TRUE(contains(text.out, "a run needs allow_slow_kernels")) << text.out;
}

TEST(KernelsVerbs, PlanOfManyDevices) {
  const json::Value node = plan("--device h200 --nproc 4");
  const json::Value nodes = plan("--device h200 --nproc 4 --nodes 2");
  EXPECT_EQ(node.at("world_size").as_number(), 4);
  EXPECT_EQ(nodes.at("world_size").as_number(), 8);
  EXPECT_EQ(node.at("node_link_bytes").as_number(), 0);
  EXPECT_GT(nodes.at("node_link_bytes").as_number(), 0);
  EXPECT_GT(nodes.at("gpu_link_bytes").as_number(), 0);
  EXPECT_LT(nodes.at("memory_total_bytes").as_number(), node.at("memory_total_bytes").as_number());
  EXPECT_TRUE(contains(nodes.at("device_card_sources").at("gpu_link_gb_s").as_string(), "measured"));

  const std::string config = "plan --model_name_or_path " + model + " --max_tokens 256 --scaling ";
  const ProgramResult table = run_deltatune(config + "--device h200 --nproc 4");
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_TRUE(contains(table.out, "\n   1024    256 ")) << table.out;
  EXPECT_TRUE(contains(table.out, "node_link_gb_s")) << "where the numbers are from: " << table.out;
  const ProgramResult without = run_deltatune(config);
  EXPECT_EQ(without.code, 2);
  EXPECT_TRUE(contains(without.err, "--device h200")) << without.err;
}

TEST(KernelsVerbs, BenchOpTimesWhatTheGlobNames) {
  const ScratchFolder folder;
  const std::string file = (folder / "bench.json").string();
  const std::string arguments =
      "bench op 'swiglu_*' --model " + model + " --tokens 64 --dtype f32 --device cpu --json " + file;
  const ProgramResult result = run_deltatune(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "swiglu_backward")) << result.out;
  EXPECT_FALSE(contains(result.out, "matmul  ")) << result.out;
  const json::Value out = json::parse(slurp(file), file);
  for (const char* key : {"date", "commit", "compiler", "machine", "command_line", "bench"})
    EXPECT_NE(out.find(key), nullptr) << key;
  const json::Value& row = out.at("bench").at("ops").as_array().at(0);
  EXPECT_EQ(row.at("op").as_string(), "swiglu_forward");
  for (const char* key : {"us", "gb_s", "roofline_share"}) EXPECT_GT(row.at(key).as_number(), 0) << key;
}

TEST(KernelsVerbs, BenchOpRefusesWhatItDoesNotKnow) {
  const std::pair<const char*, const char*> cases[] = {
      {"bench", "one of: op"},
      {"bench op a b", "unexpected argument b"},
      {"bench op --model qwen-huge --device cpu", "qwen3.8-27b"},
      {"bench op --tokens 1", "tokens"},
  };
  for (const auto& [arguments, says] : cases) {
    const ProgramResult result = run_deltatune(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_TRUE(contains(result.err, says)) << result.err;
  }
}

TEST(KernelsVerbs, BenchStepComparesBits) {
  const std::string tiny = " --device cpu --dtype f32 --depths 4 --tokens 64 --model '" DELTATUNE_SOURCE_DIR
                           "/examples/demo/model'";
  for (const char* graph : {"auto", "false"}) {
    const ProgramResult result =
        run_deltatune("bench step --check-bits 2 --cuda_graph " + std::string(graph) + tiny);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, "0 of 2 rounds differ\n");
  }
}

TEST(KernelsVerbs, BenchSaysWhatIsWrongBeforeItMeasures) {
  const std::string tiny = " --device cpu --tokens 64 --model '" DELTATUNE_SOURCE_DIR "/examples/demo/model'";
  const std::pair<std::string, std::string> cases[] = {
      {"bench step --depths ''", "the list of depths is empty"},
      {"bench step --depths 4,x", "no list of numbers"},
      {"bench step --json /no/such/folder/x.json", "results cannot be written"},
      {"bench op --json .", "results cannot be written"},
      {"bench ladder --svg /no/such/folder/x.svg", "--svg"},
      {"bench ladder --rivals /no/such/script.py", "there is no /no/such/script.py"},
      {"bench op --lengths /dev/zero", "more than 200 bytes"},
      {"bench op '******************************x'", "no op is called"},
      {"bench op fill --kernel foo", "has a kernel foo"},
  };
  for (const auto& [words, expected] : cases) {
    SCOPED_TRACE(words);
    const ProgramResult result = run_deltatune(words + tiny);
    EXPECT_EQ(result.code, words.find("/dev/zero") == std::string::npos ? 2 : 3);
    EXPECT_NE(result.err.find(expected), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("  fix: "), std::string::npos) << result.err;
  }
}

TEST(KernelsVerbs, ALadderThatDoesNotFitSaysSoAtOnce) {
  const ProgramResult result =
      run_deltatune("bench ladder --device cpu --model qwen3.8-27b --depths 48,56 --optim_dtype f32");
  EXPECT_EQ(result.code, 4);
  EXPECT_NE(result.err.find("56 layers of qwen3.8-27b need"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("--model examples/demo/model"), std::string::npos) << result.err;
}

// A rename onto a pipe or device would put a file in its place.
TEST(KernelsVerbs, BenchLeavesWhatIsNoFileAlone) {
  ScratchFolder folder;
  const std::string pipe = (folder / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const ProgramResult result =
      run_deltatune("bench op fill --device cpu --tokens 64 --model '" DELTATUNE_SOURCE_DIR
                    "/examples/demo/model' --json " +
                    pipe);
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("not a regular file"), std::string::npos) << result.err;
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(KernelsVerbs, HelpOfAVerbWithPartsShowsThem) {
  for (const char* words : {"help bench", "bench --help"}) {
    const ProgramResult result = run_deltatune(words);
    EXPECT_EQ(result.code, 0);
    EXPECT_NE(result.out.find("deltatune bench op"), std::string::npos);
    EXPECT_NE(result.out.find("deltatune bench step"), std::string::npos);
  }
}

TEST(KernelsVerbs, AWrongNumberOfThreadsIsSaid) {
  for (const char* threads : {"abc", "0", "-3", "2x"}) {
    const ProgramResult result = run_deltatune(
        "bench op fill --device cpu --tokens 64 --model '" DELTATUNE_SOURCE_DIR "/examples/demo/model'",
        std::string("DELTATUNE_NUM_THREADS=") + threads);
    EXPECT_EQ(result.code, 2) << threads;
    EXPECT_NE(result.err.find("DELTATUNE_NUM_THREADS"), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace deltatune
