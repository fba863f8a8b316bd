// What the end-to-end tests of several ranks share: a small model, runs on processes, and comparing them.
#pragma once

#include <cmath>
#include <cstdlib>
#include <map>

#include "e2e/runs.h"
#include "io/resume.h"

namespace deltatune {

inline bool can_run_ranks() {
  return fs::exists(fs::path(DELTATUNE_BINARY).parent_path() / "libdeltatune_mpi.so") &&
         std::system("command -v mpirun >/dev/null") == 0;
}

// Processes of a run that are ranks; the file names the run.
inline std::map<int, pid_t> rank_processes(const fs::path& config) {
  std::map<int, pid_t> out;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string words = slurp(entry.path() / "cmdline");
    if (words.find(config.string()) == std::string::npos || words.rfind("mpirun", 0) == 0) continue;
    const std::string environment = slurp(entry.path() / "environ");
    for (const std::string key : {"OMPI_COMM_WORLD_RANK=", "LOCAL_RANK="}) {
      const size_t at = environment.find(key);
      if (at == std::string::npos) continue;
      out[std::atoi(environment.c_str() + at + key.size())] = std::stoi(name);
      break;
    }
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

// A long run in the background, and its ranks once they train.
struct LongRun {
  LongRun(const TempFolder& folder, const Keys& keys, const fs::path& output)
      : child(folder, with(keys, {{"max_steps", "100000"}, {"lr_scheduler_type", "constant"}})) {
    EXPECT_TRUE(child.until([&] { return fs::exists(output / "checkpoint-3"); })) << child.log();
  }
  Child child;
};

inline int count_errors(const std::string& log) {
  int count = 0;
  for (size_t at = log.find("error: "); at != std::string::npos; at = log.find("error: ", at + 1)) ++count;
  return count;
}

}  // namespace deltatune
