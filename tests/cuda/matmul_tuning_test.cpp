// Tuning of cuBLASLt: choices are timed once, stored, taken up by the next device, and timed again where the
// file is damaged; products stay right whatever is chosen.
#include "ops/matmul_tuning.h"

#include <filesystem>
#include <fstream>

#include "cli/run_binary.h"
#include "cuda/cuda_case.h"
#include "tensor/arena.h"
#include "train/random_fill.h"

namespace deltatune {
namespace {

class CudaMatmulTuning : public cuda_case::Cuda {};

/// A device of its own with the operands of a few products on it.
struct Case {
  static constexpr int64_t m = 256, n = 384, k = 512;
  std::unique_ptr<Device> device = make_cuda_device(0);
  Buffer memory = device->allocate(size_t{48} << 20, "operands", "test", Lifetime::run);
  Buffer scratch = device->allocate(size_t{32} << 20, "scratch", "test", Lifetime::op);
  std::unique_ptr<Stream> stream;
  RandomFill random;
  MatmulTuning tuning;

  explicit Case(const std::string& folder) {
    KernelChoice choice{};
    choice[static_cast<size_t>(Op::matmul)] = find_kernel("matmul.cublaslt");
    stream = device->make_stream("test", choice);
    stream->set_scratch(scratch.span());
    Arena arena(memory.span());
    const Tensor x = arena.take(DType::bf16, {m, k}), w = arena.take(DType::bf16, {n, k}),
                 y = arena.take(DType::bf16, {m, n}), dw = arena.take(DType::f32, {n, k});
    tuning.calls = {{y, x, w, {MatmulLayout::nt, false}},
                    {x, y, w, {MatmulLayout::nn, false}},
                    {dw, y, x, {MatmulLayout::tn, true}},
                    {y, x, w, {MatmulLayout::nt, false}}};
    tuning.folder = folder;
    tuning.fill = [this](Stream& on, Tensor t) { random.normal(on, t); };
  }
  void prepare() { device->prepare(*stream, tuning); }
  /// y = x w^T on fresh values.
  std::vector<std::byte> product() {
    const MatmulCall& call = tuning.calls[0];
    for (const CTensor& t : {call.a, call.b})
      random.normal(*stream, {const_cast<std::byte*>(t.data), t.dtype, t.shape});
    ops::matmul(*stream, call.c, call.a, call.b, call.spec);
    std::vector<std::byte> out(call.c.bytes());
    stream->download(out.data(), call.c);
    stream->sync();
    return out;
  }
};

std::filesystem::path only_file(const std::filesystem::path& folder) {
  std::filesystem::path found;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    found = entry.path();
    ++count;
  }
  EXPECT_EQ(count, 1);
  return found;
}

TEST_F(CudaMatmulTuning, ChoicesAreStoredAndTakenUp) {
  ScratchFolder folder;
  const std::string cache = (folder / "cache").string();
  Case first(cache);
  first.prepare();
  EXPECT_EQ(first.tuning.shapes, 3);
  EXPECT_EQ(first.tuning.timed, 3);
  EXPECT_EQ(first.tuning.stored, 0);
  EXPECT_TRUE(first.tuning.warnings.empty());
  EXPECT_LE(first.tuning.chosen_us, first.tuning.first_us);
  EXPECT_GT(first.tuning.chosen_us, 0);
  const std::vector<std::byte> bits = first.product();
  EXPECT_EQ(first.product(), bits);
  Case second(cache);
  second.prepare();
  EXPECT_EQ(second.tuning.stored, 3);
  EXPECT_EQ(second.tuning.timed, 0);
  EXPECT_EQ(second.product(), bits);
}

TEST_F(CudaMatmulTuning, DamagedFilesAreAWarning) {
  ScratchFolder folder;
  const std::string cache = (folder / "cache").string();
  Case(cache).prepare();
  const std::filesystem::path file = only_file(cache);
  const std::string good = slurp(file);
  std::string flipped = good;  // one digit of an algorithm
  const size_t at = flipped.find("\"algorithm\": \"") + 20;
  flipped[at] = flipped[at] == '1' ? '2' : '1';
  std::string other = good;
  other.replace(other.find("\"format\": 1"), 11, "\"format\": 9");
  const std::vector<std::pair<std::string, int64_t>> damaged = {
      {flipped, 1}, {other, 3}, {good.substr(0, good.size() / 2), 3}, {"", 3}, {"[]", 3}};
  for (const auto& [text, timed] : damaged) {
    std::ofstream(file, std::ios::binary) << text;
    Case again(cache);
    again.prepare();
    EXPECT_EQ(again.tuning.timed, timed) << text.size();
    EXPECT_EQ(again.tuning.warnings.size(), 1U) << text.size();
    Case repaired(cache);
    repaired.prepare();
    EXPECT_EQ(repaired.tuning.stored, 3) << text.size();
  }
}

TEST_F(CudaMatmulTuning, OffTimesNothingAndReadsNothing) {
  ScratchFolder folder;
  Case off((folder / "cache").string());
  off.tuning.time = false;
  off.prepare();
  EXPECT_EQ(off.tuning.shapes, 3);
  EXPECT_EQ(off.tuning.timed, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "cache"));
  EXPECT_EQ(off.product(), off.product());
}

TEST_F(CudaMatmulTuning, AFolderThatCannotBeWrittenIsAWarning) {
  ScratchFolder folder;
  Case blocked(folder.write("file", "not a folder"));
  blocked.prepare();
  EXPECT_EQ(blocked.tuning.timed, 3);
  EXPECT_EQ(blocked.tuning.warnings.size(), 1U);
}

/// Marks measure the device's time: a longer product takes longer.
TEST_F(CudaMatmulTuning, MarksMeasureTheDevice) {
  Case c("");
  c.tuning.time = false;
  c.prepare();
  Moment begin, middle, end;
  const MatmulCall& call = c.tuning.calls[0];
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) ops::matmul(*c.stream, call.c, call.a, call.b, call.spec);
  };
  run(10);
  c.stream->mark(begin);
  run(10);
  c.stream->mark(middle);
  run(1000);
  c.stream->mark(end);
  const double few = c.stream->seconds_between(begin, middle);
  const double many = c.stream->seconds_between(middle, end);
  EXPECT_GT(few, 0);
  EXPECT_GT(many, 5 * few);
  EXPECT_LT(many, 1);
}

}  // namespace
}  // namespace deltatune
