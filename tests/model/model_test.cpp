// The whole model: its gradient against finite differences in double, recompute policies bit for bit, and
// that nothing of a document reaches another one of the same row.
#include "model/model.h"

#include <gtest/gtest.h>

#include "model/model_run.h"

namespace deltatune {
namespace {

// Documents of one token, of more than one chunk, and filler at the end.
Batch mixed_row(int32_t vocab, int64_t tokens) {
  std::vector<Document> documents;
  uint64_t stream = 0;
  for (const int64_t length : {5, 1, 70, 2, 1, 9})
    documents.push_back(random_document(length, 0, vocab, ++stream));
  documents[3].supervised = false;
  return packed_row(documents, tokens);
}

// dL/dw of every parameter tensor by the five-point difference. With h = 1e-4 truncation (h^4 L''''' / 30)
// and rounding (eps L / h) both stay below 1e-9 of a gradient; with 1e-3 the steepest directions show 1e-5 of
// truncation.
void check_gradients(bool tied, Keep keep) {
  ModelRun run(tiny_config(tied), tied, DType::f64, 95, 16, keep);
  const Batch batch = mixed_row(24, 95);
  run.step(batch);
  constexpr double h = 1e-4;
  for (size_t p = 0; p < run.table().params.size(); ++p) {
    const std::string& name = run.table().params[p].name;
    const std::vector<double> analytic = run.gradient(static_cast<int>(p)).values();
    double largest = 0;
    for (const double g : analytic) largest = std::max(largest, std::abs(g));
    EXPECT_GT(largest, 1e-4) << name << " has no gradient to check";
    Rng rng(5, p);
    for (int probe = 0; probe < 12; ++probe) {
      const auto i = static_cast<size_t>(rng.below(analytic.size()));
      double& x = run.weights()[p].view().as<double>()[i];
      const double at = x;
      const auto loss_at = [&](double offset) {
        x = at + offset * h;
        return run.loss(batch);
      };
      const double numeric = (8 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2))) / (12 * h);
      x = at;
      EXPECT_NEAR(analytic[i], numeric, 1e-8 * std::max(largest, 1.0)) << name << "[" << i << "]";
    }
  }
}

TEST(ModelTest, GradientIsTheDerivativeTied) {
  check_gradients(true, Keep::nothing());
}
TEST(ModelTest, GradientIsTheDerivativeUntied) {
  check_gradients(false, Keep::all());
}

TEST(ModelTest, RecomputePoliciesGiveTheSameBits) {
  for (const DType storage : {DType::f64, DType::f32, DType::bf16}) {
    const Batch batch = mixed_row(24, 95);
    ModelRun all(tiny_config(true), true, storage, 95, 16, Keep::all());
    const double loss = all.step(batch);
    EXPECT_TRUE(std::isfinite(loss));
    const std::vector<std::byte> logits = all.logits(batch);
    // Besides the three policies each part alone, all but one, and mixtures that differ from block to block.
    constexpr int parts = static_cast<int>(SavedPart::count);
    Rng rng(5);
    for (int bits = 0; bits < 3 + 2 * parts + 12; ++bits) {
      Keep keep = std::array{Keep::nothing(), Keep::outputs(),
                             Keep::all()}[std::min<size_t>(2, static_cast<size_t>(bits))];
      if (bits >= 3) {
        for (int block = 0; block < 2; ++block) {
          SavedParts kept;
          for (int p = 0; p < parts; ++p) {
            const int alone = bits - 3, without = bits - 3 - parts;
            const bool drawn = rng.below(2) == 1;
            if (alone < parts ? p == alone : without < parts ? p != without : drawn)
              kept.add(static_cast<SavedPart>(p));
          }
          keep.blocks.push_back(kept);
        }
      }
      ModelRun other(tiny_config(true), true, storage, 95, 16, keep);
      EXPECT_EQ(other.step(batch), loss) << bits;
      for (size_t p = 0; p < all.gradients().size(); ++p) {
        EXPECT_TRUE(all.gradients()[p] == other.gradients()[p])
            << name_of(storage) << ", keep " << bits << ": " << all.table().params[p].name;
      }
      EXPECT_EQ(other.logits(batch), logits);
    }
  }
}

TEST(ModelTest, EvaluationGivesTheTrainingLoss) {
  ModelRun run(tiny_config(false), false, DType::f32, 95, 16, Keep::outputs());
  const Batch batch = mixed_row(24, 95);
  EXPECT_EQ(run.loss(batch), run.step(batch));
}

TEST(ModelTest, GradientsAccumulateOverRows) {
  const ModelConfig config = tiny_config(true);
  const Batch together = packed_row({random_document(20, 0, 24, 1), random_document(30, 0, 24, 2)}, 50);
  const Batch first = packed_row({random_document(20, 0, 24, 1)}, 50);
  const Batch second = packed_row({random_document(30, 0, 24, 2)}, 50);
  ModelRun run(config, true, DType::f64, 50, 4, Keep::nothing());
  const double sum = run.step(together);
  const std::vector<parity::Array> expected = run.gradients();
  EXPECT_NEAR(run.step(first) + run.loss(second), sum, 1e-12 * sum);
  std::vector<std::vector<double>> parts;
  for (const parity::Array& g : run.gradients()) parts.push_back(g.values());
  run.step(second);
  for (size_t p = 0; p < parts.size(); ++p) {
    const std::vector<double> rest = run.gradients()[p].values();
    for (size_t i = 0; i < rest.size(); ++i) parts[p][i] += rest[i];
    EXPECT_LT(parity::nmse(parts[p], expected[p].values()), 1e-24) << run.table().params[p].name;
  }
}

// The first micro-batch of a window writes the gradients that are one product: the bits of adding to zero.
TEST(ModelTest, FreshGradientsHaveTheBitsOfZeroFilledOnes) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(testing::Message() << name_of(storage) << (tied ? ", tied" : ""));
      ModelRun run(tiny_config(tied), tied, storage, 96, 8, Keep::outputs());
      const std::vector<Document> documents = {random_document(40, 1, 24, 1), random_document(50, 1, 24, 2)};
      std::vector<Document> masked = documents;
      for (Document& d : masked) d.supervised = false;
      for (const Batch& batch : {packed_row(documents, 96), packed_row(masked, 96)}) {
        const double expected_loss = run.step(batch);
        const std::vector<parity::Array> expected = run.gradients();
        EXPECT_EQ(run.fresh_step(batch), expected_loss);
        for (size_t p = 0; p < expected.size(); ++p)
          EXPECT_TRUE(run.gradients()[p] == expected[p]) << run.table().params[p].name;
      }
    }
  }
}

// --- nothing leaks between the documents of a row ---

struct Leak : testing::TestWithParam<DType> {
  static constexpr int64_t tokens = 160;
  static constexpr int32_t vocab = 120;
  ModelConfig config = tiny_config(false, vocab);
  std::vector<Document> documents;

  // Document d uses tokens [20 d, 20 d + 20) only. One has one token, one more than a chunk.
  void SetUp() override {
    int32_t d = 0;
    for (const int64_t length : {30, 1, 70, 3, 40}) {
      documents.push_back(random_document(length, 20 * d, 20 * d + 20, static_cast<uint64_t>(50 + d)));
      ++d;
    }
  }
  // Heads that forget a hundredth per token: whatever leaks stays visible to the end of the row.
  ModelRun make(Keep keep = Keep::nothing()) const {
    ModelRun run(config, false, GetParam(), tokens, 8, keep);
    run.set_decay(0.01);
    return run;
  }
  std::pair<size_t, size_t> range(const Batch& b, size_t d) const {
    const size_t row = static_cast<size_t>(vocab) * size_of(GetParam());
    return {static_cast<size_t>(b.cu_seqlens[d]) * row, static_cast<size_t>(b.cu_seqlens[d + 1]) * row};
  }
};

TEST_P(Leak, ChangingADocumentLeavesTheLogitsOfAllOthers) {
  ModelRun run = make();
  const Batch batch = packed_row(documents, tokens);
  const std::vector<std::byte> before = run.logits(batch);
  for (size_t changed = 0; changed < documents.size(); ++changed) {
    std::vector<Document> others = documents;
    for (int32_t& id : others[changed].ids) id = (id + 37) % vocab;
    const std::vector<std::byte> after = run.logits(packed_row(others, tokens));
    for (size_t d = 0; d < batch.cu_seqlens.size() - 1; ++d) {
      const auto [begin, end] = range(batch, d);
      const bool same = std::equal(before.begin() + static_cast<std::ptrdiff_t>(begin),
                                   before.begin() + static_cast<std::ptrdiff_t>(end),
                                   after.begin() + static_cast<std::ptrdiff_t>(begin));
      EXPECT_EQ(same, d != changed) << "document " << changed << " changed, logits of segment " << d;
    }
  }
}

TEST_P(Leak, ADocumentAloneGivesItsLogits) {
  // The same arithmetic in another place of the row: equal up to the order inside vectorised matrix products.
  ModelRun run = make();
  const Batch batch = packed_row(documents, tokens);
  const std::vector<std::byte> packed = run.logits(batch);
  const auto values = [&](const std::vector<std::byte>& bytes, size_t begin, size_t end) {
    std::vector<double> out((end - begin) / size_of(GetParam()));
    convert(out.data(), DType::f64, bytes.data() + begin, GetParam(), static_cast<int64_t>(out.size()));
    return out;
  };
  for (size_t d = 0; d < documents.size(); ++d) {
    const auto [begin, end] = range(batch, d);
    const std::vector<std::byte> alone = run.logits(packed_row({documents[d]}, tokens));
    EXPECT_LT(parity::nmse(values(packed, begin, end), values(alone, 0, end - begin)),
              GetParam() == DType::f32 ? 1e-11 : 1e-4)
        << d;
  }
}

TEST_P(Leak, LossOnOneDocumentGivesNoGradientToTokensOfOthers) {
  for (const Keep& keep : {Keep::nothing(), Keep::all()}) {
    ModelRun run = make(keep);
    for (size_t chosen = 0; chosen < documents.size(); ++chosen) {
      if (documents[chosen].ids.size() < 2) continue;  // a document of one token has no target
      std::vector<Document> row = documents;
      for (size_t d = 0; d < row.size(); ++d) row[d].supervised = d == chosen;
      run.step(packed_row(row, tokens));
      const std::vector<double> gradient = run.gradient(run.model().params().embedding).values();
      for (size_t v = 0; v < static_cast<size_t>(vocab); ++v) {
        const auto& ids = documents[chosen].ids;
        // The last token of a document is predicted from, but predicts nothing.
        const bool used = std::find(ids.begin(), ids.end() - 1, static_cast<int32_t>(v)) != ids.end() - 1;
        double norm = 0;
        for (size_t i = 0; i < 12; ++i) norm += std::abs(gradient[v * 12 + i]);
        EXPECT_EQ(norm > 0, used) << "token " << v << ", loss on document " << chosen;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, Leak, testing::Values(DType::f32, DType::bf16),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace deltatune
