// Host memory of one of eight ranks while it reads and writes its part: about that part and one tensor, never
// the model. On a CPU the rank's own state is host memory too. The other ranks are pretended: none of what is
// measured here depends on them.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "io/test_files.h"
#include "shard/rank_engine.h"
#include "train/checkpoint_saver.h"

namespace deltatune {
namespace {

constexpr int ranks = 8;
constexpr int64_t vocabulary = 3'000'000;  // x 12: the embedding is 144 MB in f32, and so is the head
constexpr double tensor_bytes = 12.0 * vocabulary * 4;
constexpr double part_bytes = 2 * tensor_bytes / ranks;  // of the weights; blocks are a few KB

double status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kib = 0;
    if (word == key && file >> kib) return kib * 1024;
  }
  return -1;
}

/// The highest resident memory since it was made, above that at its start. Linux counts it for the process.
class Peak {
 public:
  Peak() {
    std::ofstream("/proc/self/clear_refs") << 5 << std::flush;
    start_ = status_bytes("VmRSS:");
  }
  bool works() const { return start_ > 0 && status_bytes("VmHWM:") - start_ < 1e6; }
  double bytes() const { return status_bytes("VmHWM:") - start_; }

 private:
  double start_;
};

struct HostMemory : testing::Test {
  TempFolder dir{"host_memory"};
  ModelSource source;

  void SetUp() override {
    if (!Peak().works()) GTEST_SKIP() << "no /proc/self/clear_refs here";
    write_text(dir / "model" / "config.json", "{}");
    write_text(dir / "model" / "tokenizer.json", "tok");
    source.folder = dir / "model";
    source.checkpoint = std::make_unique<HfCheckpoint>(source.folder);
    source.config = hybrid_config(false);
    source.config.vocab_size = vocabulary;
    source.random = true;
  }
  CheckpointOptions save_options(const std::string& name, bool copies) const {
    CheckpointOptions out;
    out.output_dir = dir / name;
    out.storage = DType::f32;
    out.copies = copies;
    return out;
  }
};

TEST_F(HostMemory, ReadingTakesAPartAndATensor) {
  {
    const auto device = make_cpu_device();
    const auto solo = make_solo_communicator();
    EngineOptions options = tiny_options();
    options.train = false;
    Engine engine(*device, *solo, source.config, false, options);
    engine.store().initialise(engine.stream(), 1, 0.02);
    fs::create_directories(dir / "whole");
    CheckpointSaver(engine, source, save_options("whole", false)).save_model({});
  }
  const auto device = make_cpu_device();
  const auto comm = make_null_communicator(ranks);
  Engine engine(*device, *comm, source.config, false, tiny_options());
  const Peak peak;
  const HfCheckpoint checkpoint(dir / "whole");
  engine.store().load(engine.stream(), checkpoint);
  engine.stream().sync();
  const double states = 4 * part_bytes;  // weights, gradients, two moments
  EXPECT_GT(peak.bytes(), 0.9 * states) << "the measure sees what is read";
  EXPECT_LT(peak.bytes(), states + tensor_bytes);
  std::printf("reading: %.0f MB beside %.0f MB of states; the model has %.0f MB\n",
              (peak.bytes() - states) * 1e-6, states * 1e-6, 2 * tensor_bytes * 1e-6);
}

TEST_F(HostMemory, SavingTakesATensorAndWhereItCopiesAPart) {
  const auto device = make_cpu_device();
  const auto comm = make_null_communicator(ranks);
  Engine engine(*device, *comm, source.config, false, tiny_options());
  engine.store().initialise(engine.stream(), 1, 0.02);
  engine.stream().sync();
  for (const bool copies : {false, true}) {
    const std::string name = copies ? "copied" : "direct";
    fs::create_directories(dir / name);
    CheckpointSaver saver(engine, source, save_options(name, copies));
    const Peak peak;
    EXPECT_EQ(saver.start(3, json::Object{{"cursor", 7}}, {}), copies);
    // The pretended ranks say that they have written what this one has. That makes no whole file, which is
    // noticed when this rank's part is on disk.
    EXPECT_THROW(saver.finish(), Error);
    const double state = 3 * part_bytes;  // weights, two moments
    EXPECT_GT(peak.bytes(), copies ? 0.9 * state : 0);
    EXPECT_LT(peak.bytes(), (copies ? state : 0) + tensor_bytes);
    std::printf("saving, %s: %.0f MB beside a copy of %.0f MB\n", name.c_str(),
                (peak.bytes() - (copies ? state : 0)) * 1e-6, copies ? state * 1e-6 : 0);
  }
}

}  // namespace
}  // namespace deltatune
