// `--nproc N` on the CPU: runs on several processes train like one process, repeat, go on with another number
// of ranks, and end with one message when a rank is killed, hangs or cannot write.
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "e2e/runs.h"
#include "io/resume.h"

namespace deltatune {
namespace {

bool can_run_ranks() {
  return fs::exists(fs::path(DELTATUNE_BINARY).parent_path() / "libdeltatune_mpi.so") &&
         std::system("command -v mpirun >/dev/null") == 0;
}

// Processes of a run that are ranks; the file names the run.
std::map<int, pid_t> rank_processes(const fs::path& config) {
  std::map<int, pid_t> out;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string words = slurp(entry.path() / "cmdline");
    if (words.find(config.string()) == std::string::npos || words.rfind("mpirun", 0) == 0) continue;
    const std::string environment = slurp(entry.path() / "environ"), key = "OMPI_COMM_WORLD_RANK=";
    const size_t at = environment.find(key);
    if (at != std::string::npos) out[std::atoi(environment.c_str() + at + key.size())] = std::stoi(name);
  }
  return out;
}

struct Ranks : testing::Test {
  TempFolder folder{"ranks"};
  fs::path model = folder / "model";
  Keys keys;

  void SetUp() override {
    if (!can_run_ranks())
      GTEST_SKIP() << "no MPI plug-in or no mpirun here (Debian: libopenmpi-dev, openmpi-bin)";
    write_small_model(model);
    keys =
        with(small_keys(model, folder / "none"), {{"dtype", "f32"}, {"max_steps", "6"}, {"save_steps", "3"}});
  }
  Keys to(const std::string& output, int ranks, int accumulation, const Keys& more = {}) const {
    return with(with(keys, {{"output_dir", (folder / output).string()},
                            {"nproc", std::to_string(ranks)},
                            {"gradient_accumulation_steps", std::to_string(accumulation)}}),
                more);
  }
  void train(const Keys& with_keys) const {
    const ProgramResult result = run_verb("train", with_keys);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  void expect_close(const std::string& a, const std::string& b) const {
    const std::vector<double> x = losses(folder / a), y = losses(folder / b);
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-5 * y[i]) << a << " step " << i + 1;
    const SafetensorsFile left(folder / a / "model.safetensors"), right(folder / b / "model.safetensors");
    double difference = 0, norm = 0;
    for (const StoredTensor& tensor : left.tensors()) {
      const StoredTensor* other = right.find(tensor.name);
      ASSERT_TRUE(other != nullptr && other->size == tensor.size) << tensor.name;
      const auto dtype = dtype_from_safetensors(tensor.dtype).value();
      const auto count = static_cast<int64_t>(tensor.size / size_of(dtype));
      std::vector<double> p(static_cast<size_t>(count)), q(p.size());
      convert(p.data(), DType::f64, left.bytes(tensor).data(), dtype, count);
      convert(q.data(), DType::f64, right.bytes(*other).data(), dtype, count);
      for (size_t i = 0; i < p.size(); ++i) {
        difference += (p[i] - q[i]) * (p[i] - q[i]);
        norm += q[i] * q[i];
      }
    }
    EXPECT_LT(std::sqrt(difference / norm), 1e-5);
  }
  std::string bytes(const std::string& run) const { return slurp(folder / run / "model.safetensors"); }
};

TEST_F(Ranks, ProcessesTrainLikeOne) {
  train(to("one", 1, 4));
  for (const int ranks : {2, 4}) {
    const std::string name = "of" + std::to_string(ranks);
    train(to(name, ranks, 4 / ranks));
    expect_close(name, "one");
    train(to(name + "again", ranks, 4 / ranks));
    EXPECT_FALSE(bytes(name).empty());
    EXPECT_TRUE(bytes(name) == bytes(name + "again")) << ranks << " ranks do not repeat";
    EXPECT_EQ(step_lines(folder / name), step_lines(folder / (name + "again")));
  }
}

// A long run in the background, and its ranks once they train.
struct LongRun {
  LongRun(const TempFolder& folder, const Keys& keys, const fs::path& output)
      : child(folder, with(keys, {{"max_steps", "100000"}, {"lr_scheduler_type", "constant"}})) {
    EXPECT_TRUE(child.until([&] { return fs::exists(output / "checkpoint-3"); })) << child.log();
  }
  Child child;
};

int count_errors(const std::string& log) {
  int count = 0;
  for (size_t at = log.find("error: "); at != std::string::npos; at = log.find("error: ", at + 1)) ++count;
  return count;
}

TEST_F(Ranks, AKilledRankEndsTheRunWithOneMessage) {
  LongRun run(folder, to("killed", 3, 1), folder / "killed");
  const auto ranks = rank_processes(run.child.config());
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks.at(1), SIGKILL);
  EXPECT_EQ(run.child.wait(), 5);
  const std::string log = run.child.log();
  EXPECT_EQ(count_errors(log), 1) << log;
  EXPECT_NE(log.find("error: rank 1 was ended by signal 9"), std::string::npos) << log;
  EXPECT_NE(log.find("  where: rank 1, step "), std::string::npos) << log;
  EXPECT_TRUE(rank_processes(run.child.config()).empty());
  // Resumable, on fewer ranks too.
  const auto latest = latest_complete_checkpoint(folder / "killed");
  ASSERT_TRUE(latest.has_value());
  train(to("killed", 1, 3,
           {{"resume_from_checkpoint", "true"}, {"max_steps", std::to_string(latest->step + 2)}}));
}

TEST_F(Ranks, AHungRankIsGivenUp) {
  LongRun run(folder, to("hung", 2, 1, {{"ddp_timeout", "3"}}), folder / "hung");
  const auto ranks = rank_processes(run.child.config());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks.at(1), SIGSTOP);
  EXPECT_EQ(run.child.wait(), 5);
  const std::string log = run.child.log();
  EXPECT_EQ(count_errors(log), 1) << log;
  EXPECT_NE(log.find("error: rank 1 did not take part in "), std::string::npos) << log;
  EXPECT_NE(log.find("  where: rank 0, step "), std::string::npos) << log;
  EXPECT_TRUE(rank_processes(run.child.config()).empty());
}

TEST_F(Ranks, AFullDiskIsOneMessageAndLeavesTheOldCheckpoint) {
  // A limit of file sizes, 10 MB, stands in for the full disk; the demo's model alone is larger.
  const fs::path demo = source_dir / "examples/demo/model";
  const ProgramResult result =
      run_verb("train", to("full", 2, 1, {{"model_name_or_path", demo.string()}}), "", "ulimit -f 20000;");
  expect_error(result, 4, "cannot write");
  EXPECT_EQ(count_errors(result.err), 1) << result.err;
  EXPECT_FALSE(fs::exists(folder / "full/checkpoint-3"));
}

TEST_F(Ranks, UnderALauncherNothingIsStarted) {
  // Variables of a launcher that MPI knows nothing of.
  const ProgramResult result =
      run_verb("train", to("alone", 1, 1), "", "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4");
  expect_error(result, 5, "MPI says rank 0 of 1");
  expect_error(run_verb("train", to("alone", 1, 1), "", "RANK=4 WORLD_SIZE=4"), 2, "rank 4 of 4");
}

}  // namespace
}  // namespace deltatune
