// The engine on a GPU: kernels are selected before memory is taken, slow ones stop it, and the plan is exact.
#include "train/engine.h"

#include "cuda/cuda_case.h"
#include "model/model_run.h"

namespace deltatune {
namespace {

class CudaEngine : public cuda_case::Cuda {};

EngineOptions options(DType storage) {
  EngineOptions o;
  o.storage = storage;
  o.tokens = 192;
  o.max_documents = 8;
  o.allow_slow_kernels = true;
  return o;
}

TEST_F(CudaEngine, SlowKernelsStopItBeforeAnythingIsAllocated) {
  const auto device = make_cuda_device(0);
  const auto comm = make_solo_communicator();
  EngineOptions o = options(DType::f32);
  o.allow_slow_kernels = false;
  try {
    const Engine engine(*device, *comm, tiny_config(true, 24), true, o);
    ADD_FAILURE() << "f32 on a GPU went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.fix().find("allow_slow_kernels"), std::string::npos) << error.text();
  }
  EXPECT_EQ(device->allocation_count(), 0U);
}

TEST_F(CudaEngine, UnsupportedHeadsAreRefusedBeforeAnythingIsAllocated) {
  const auto device = make_cuda_device(0);
  const auto comm = make_solo_communicator();
  ModelConfig config = tiny_config(true, 24);
  config.attention.head_dim = 260;
  EXPECT_THROW(Engine(*device, *comm, config, true, options(DType::bf16)), Error);
  EXPECT_EQ(device->allocation_count(), 0U);
}

TEST_F(CudaEngine, ThePlanIsWhatIsAllocated) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    const auto device = make_cuda_device(0);
    const auto null = make_null_device(device->facts());
    const auto comm = make_solo_communicator();
    const Engine planned(*null, *comm, tiny_config(true, 24), true, options(storage));
    Engine engine(*device, *comm, tiny_config(true, 24), true, options(storage));
    EXPECT_EQ(device->plan().total(), null->plan().total()) << name_of(storage);
    EXPECT_EQ(device->allocated_bytes(), null->plan().total()) << name_of(storage);
    EXPECT_EQ(planned.kernels().choice(), engine.kernels().choice());
    // A step takes no more scratch than was planned (an assertion of the stream).
    engine.store().initialise(engine.stream(), 11, 0.3);
    const Batch batch = synthetic_batch(192, 64, 8);
    engine.begin_window();
    engine.micro_step(batch);
    EXPECT_FALSE(engine.update(1e-3, 1, batch.num_targets).nonfinite);
    EXPECT_EQ(device->allocated_bytes(), null->plan().total());
  }
}

}  // namespace
}  // namespace deltatune
