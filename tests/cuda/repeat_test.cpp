// Kernels that repeat bit for bit, thousands of times at the size they are used at: a race that hits one row
// in a hundred million shows in no comparison of two runs.
#include "cuda/cuda_case.h"
#include "train/bench_bits.h"
#include "train/bench_model.h"

namespace deltatune {
namespace {

using cuda_case::cuda_device;

// The heads of the 27B model over few channels: kernels over heads do all their work, products next to none.
// Rows of `channels` for the norms, which work in place: they repeat in whole steps.
BenchStepOptions heads_of_27b(int64_t channels) {
  BenchStepOptions options;
  options.model = bench_model_config("qwen3.8-27b");
  options.model.hidden_size = channels;
  options.model.intermediate_size = 256;
  options.model.vocab_size = 512;
  options.model_name = "heads of 27B";
  options.depths = {4};
  options.tokens = 8192;
  options.lengths = {1503, 877, 2210, 640, 1340, 980, 642};
  options.graph = GraphMode::never;
  options.deterministic = true;
  options.allow_slow_kernels = true;  // ops over few channels
  options.tune_matmuls = false;
  options.recompute = "none";
  return options;
}

struct Repeated {
  const char* ops;
  int rounds;
  int64_t channels = 256;
};
void PrintTo(const Repeated& x, std::ostream* out) {
  *out << x.ops;
}

class RepeatBits : public cuda_case::CudaFixture<testing::TestWithParam<Repeated>> {};
TEST_P(RepeatBits, OfAnOp) {
  std::string why;
  const auto [glob, rounds, channels] = GetParam();
  const BitsReport report = check_bits(*cuda_device(why), heads_of_27b(channels), rounds, glob);
  EXPECT_EQ(report.rounds, rounds);
  EXPECT_EQ(report.different, 0);
  for (const std::string& line : report.lines) ADD_FAILURE() << line;
}
INSTANTIATE_TEST_SUITE_P(Cuda, RepeatBits,
                         testing::Values(Repeated{"qk_norm_rope_*", 4000}, Repeated{"gdn_prologue_*", 1500},
                                         Repeated{"gated_rmsnorm_*", 1000}, Repeated{"gated_delta_*", 500},
                                         Repeated{"attention_*", 150}, Repeated{"*", 60, 5120}));

}  // namespace
}  // namespace deltatune
