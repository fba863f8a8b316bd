// Gradient release and moments in host memory on a GPU: the bits of the usual step, op by op and as graphs,
// and the plan is what is allocated.
#include <gtest/gtest.h>

#include "cuda/cuda_case.h"
#include "ops/null_device.h"
#include "train/tiny_engine.h"

namespace deltatune {
namespace {

class CudaLayouts : public cuda_case::Cuda {};

constexpr int64_t tokens = 300;

struct Layout {
  DType moments = DType::u8;
  bool release = false;
  bool offload = false;
  GraphMode graph = GraphMode::never;
  int64_t piece = 1024;
};

EngineOptions options_of(const Layout& layout) {
  EngineOptions o = tiny_options(DType::bf16, tokens);
  o.allow_slow_kernels = true;
  o.max_grad_norm = 0;
  o.moments.dtype = layout.moments;
  o.moments.offload = layout.offload;
  o.moments.piece = layout.piece;
  o.gradient_release = layout.release;
  o.graph = layout.graph;
  o.master_weights = layout.moments == DType::f32;
  o.adamw.rounding = Rounding::stochastic;
  o.adamw.seed = 4;
  return o;
}

struct Trained {
  std::vector<double> losses;
  std::vector<std::byte> state;
  int64_t nodes = 0;
};

Trained train(const Layout& layout, bool tied) {
  const auto device = make_cuda_device(0);
  const auto comm = make_solo_communicator();
  Engine engine(*device, *comm, tiny_config(tied), tied, options_of(layout));
  engine.store().initialise(engine.stream(), 11, 0.3);
  Trained out;
  for (int64_t step = 1; step <= 6; ++step) {
    std::vector<Document> documents;
    for (uint64_t d = 0; d < 4; ++d)
      documents.push_back(random_document(20 + step * 7 + static_cast<int64_t>(d), 1, 24,
                                          d + 10 * static_cast<uint64_t>(step)));
    const Batch batch = packed_row(documents, tokens);
    const UpdateResult result = engine.single_step(batch, 1e-2, step, batch.num_targets);
    EXPECT_FALSE(result.nonfinite);
    out.losses.push_back(result.loss_sum);
  }
  engine.stream().sync();
  for (const StateTensor& tensor : engine.store().state()) {
    const size_t at = out.state.size();
    out.state.resize(at + tensor.data.bytes());
    engine.stream().download(out.state.data() + at, tensor.data);
  }
  engine.stream().sync();
  for (int part = 0; part < StepGraphs::part_count; ++part)
    out.nodes += engine.graphs().nodes(static_cast<StepGraphs::Part>(part));
  return out;
}

TEST_F(CudaLayouts, GiveTheBitsOfTheUsualStep) {
  for (const bool tied : {true, false}) {
    for (const DType moments : {DType::u8, DType::bf16, DType::f32}) {
      const Trained usual = train({moments, false, false, GraphMode::never}, tied);
      for (const bool release : {false, true}) {
        for (const bool offload : {false, true}) {
          for (const GraphMode graph : {GraphMode::never, GraphMode::always}) {
            SCOPED_TRACE(testing::Message()
                         << "tied " << tied << ", " << name_of(moments) << ", release " << release
                         << ", offload " << offload << ", graph " << static_cast<int>(graph));
            const Trained other = train({moments, release, offload, graph}, tied);
            EXPECT_EQ(other.losses, usual.losses);
            EXPECT_EQ(other.state, usual.state);
            EXPECT_EQ(other.nodes > 0, graph == GraphMode::always);
          }
        }
      }
    }
  }
}

TEST_F(CudaLayouts, ThePlanIsWhatIsAllocated) {
  for (const bool release : {false, true}) {
    for (const bool offload : {false, true}) {
      const auto device = make_cuda_device(0);
      const auto null = make_null_device(device->facts());
      const auto comm = make_solo_communicator();
      const EngineOptions options = options_of({DType::u8, release, offload});
      const Engine planned(*null, *comm, tiny_config(false), false, options);
      const Engine engine(*device, *comm, tiny_config(false), false, options);
      EXPECT_EQ(device->plan().total(), null->plan().total()) << release << offload;
      EXPECT_EQ(device->allocated_bytes(), null->plan().total()) << release << offload;
      EXPECT_EQ(device->plan().regions().size(), null->plan().regions().size());
    }
  }
}

// Large staging memory is mapped, faulted in and pinned by another way than small.
TEST_F(CudaLayouts, LargeStagingMemoryIsCopiedLikeAnyOther) {
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream("test");
  const size_t bytes = (size_t{256} << 20) + 4096;
  const Buffer staging = device->allocate_staging(bytes, "large", "test");
  const Buffer memory = device->allocate(4096, "small", "test", Lifetime::run);
  const Tensor x{memory.data(), DType::u8, {4096}};
  std::byte* end = staging.data() + staging.size() - 4096;
  for (size_t i = 0; i < 4096; ++i) end[i] = static_cast<std::byte>(i * 7);
  stream->upload(x, end);
  stream->download(staging.data(), x);
  stream->sync();
  EXPECT_EQ(std::memcmp(staging.data(), end, 4096), 0);
  // And the device may see it as its own.
  ops::fill(*stream, {staging.data(), DType::f32, {1024}}, 3);
  stream->sync();
  float value = 0;
  std::memcpy(&value, staging.data() + 4092, 4);
  EXPECT_EQ(value, 3);
  EXPECT_EQ(device->allocated_bytes(), 4096u);
}

}  // namespace
}  // namespace deltatune
