// The same 64 conversations as packed rows, padded and sorted rectangles, and each alone: one loss, one
// gradient.
#include <gtest/gtest.h>

#include "train/tiny_engine.h"

namespace deltatune {
namespace {

constexpr int64_t T = 96;

std::vector<Document> conversations() {
  std::vector<Document> out;
  Rng rng(64);
  for (uint64_t i = 0; i < 64; ++i) {
    out.push_back(random_document(static_cast<int64_t>(2 + rng.below(38)), 1, 24, i));
    out.back().supervised = i % 9 != 4;  // some are only read
  }
  return out;
}

struct Epoch {
  int64_t rows = 0;
  int64_t targets = 0;
  int64_t tokens = 0;
  double mean_loss = 0;
  double grad_norm = 0;
  std::vector<double> gradient;  // of the loss sum
};

Epoch run(const TokenizedSet& set, Batching batching, int64_t max_segments) {
  StreamOptions options;
  options.max_tokens = T;
  options.batching = batching;
  options.max_segments = max_segments;
  BatchStream stream(set, options);
  EngineOptions engine_options = tiny_options(DType::f32, T);
  engine_options.max_documents = stream.max_segments();
  TinyEngine t(engine_options);
  Epoch out;
  t.engine.begin_window();
  while (stream.cursor().epoch == 0) {
    const Batch batch = stream.next();
    ++out.rows;
    out.targets += batch.num_targets;
    out.tokens += batch.real_tokens;
    if (batch.num_targets > 0) t.engine.micro_step(batch);
  }
  out.gradient = t.gradients();
  const UpdateResult result = t.engine.inspect_window(out.targets);
  out.mean_loss = result.loss_sum / static_cast<double>(out.targets);
  out.grad_norm = result.grad_norm;
  return out;
}

TEST(BatchingGradient, IsTheSameHoweverRowsAreMade) {
  const TokenizedSet set = set_of(conversations(), T);
  ASSERT_EQ(set.size(), 64);
  const Epoch packed = run(set, Batching::packed, 0);
  struct Way {
    const char* name;
    Batching batching;
    int64_t max_segments;
  };
  const Way ways[] = {
      {"padded", Batching::padded, 0}, {"sorted", Batching::sorted, 0}, {"alone", Batching::packed, 2}};
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    const Epoch other = run(set, way.batching, way.max_segments);
    EXPECT_GT(other.rows, packed.rows) << "the rows must differ";
    EXPECT_EQ(other.targets, packed.targets);
    EXPECT_EQ(other.tokens, packed.tokens);
    EXPECT_NEAR(other.mean_loss, packed.mean_loss, 1e-6 * packed.mean_loss);
    EXPECT_NEAR(other.grad_norm, packed.grad_norm, 1e-6 * packed.grad_norm);
    // |a - b| / |b| over all parameters.
    const double relative = std::sqrt(2 * parity::nmse(other.gradient, packed.gradient));
    EXPECT_LT(relative, 1e-6);
    EXPECT_GT(relative, 0) << "different sums of floats";
    std::printf("%s: %lld rows, loss %.3e, gradient %.3e relative to packed\n", way.name,
                static_cast<long long>(other.rows), std::abs(other.mean_loss / packed.mean_loss - 1),
                relative);
  }
}

}  // namespace
}  // namespace deltatune
