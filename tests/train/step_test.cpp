// Optimizer steps: windows and their denominators, rows and windows without a target, steps that are not
// finite, memory that is not allocated during steps, streams on threads of their own.
#include "train/step.h"

#include <gtest/gtest.h>

#include "shard/garbage_device.h"
#include "train/evaluate.h"
#include "train/tiny_engine.h"

namespace deltatune {
namespace {

std::vector<Document> documents() {
  return {random_document(20, 1, 24, 1), random_document(11, 1, 24, 2), random_document(30, 1, 24, 3),
          random_document(3, 1, 24, 4), random_document(25, 1, 24, 5)};
}

StreamOptions stream_options(int64_t tokens, int64_t accumulation) {
  StreamOptions o;
  o.max_tokens = tokens;
  o.max_segments = 8;
  o.gradient_accumulation_steps = accumulation;
  return o;
}

TEST(EngineTest, MicroBatchesAddUpToOne) {
  const std::vector<Document> all = documents();
  TinyEngine one(tiny_options(DType::f32, 96)), many(tiny_options(DType::f32, 96));
  const Batch together = packed_row(all, 96);
  one.engine.begin_window();
  one.engine.micro_step(together);
  many.engine.begin_window();
  for (const Document& d : all) many.engine.micro_step(packed_row({d}, 96));
  EXPECT_LT(parity::nmse(one.gradients(), many.gradients()), 1e-12);
  const UpdateResult a = one.engine.update(1e-3, 1, together.num_targets);
  const UpdateResult b = many.engine.update(1e-3, 1, together.num_targets);
  EXPECT_NEAR(a.loss_sum, b.loss_sum, 1e-6 * a.loss_sum);
  EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-6 * a.grad_norm);
}

TEST(EngineTest, TheCountDividesOnce) {
  const Batch batch = packed_row(documents(), 96);
  std::vector<double> norms;
  for (const int64_t count : {batch.num_targets, 2 * batch.num_targets}) {
    TinyEngine t(tiny_options(DType::f32, 96));
    t.engine.begin_window();
    t.engine.micro_step(batch);
    norms.push_back(t.engine.update(1e-3, 1, count).grad_norm);
  }
  EXPECT_NEAR(norms[0], 2 * norms[1], 1e-6 * norms[0]);
}

// The loss is a mean over the tokens that are trained, not over the slots or the tokens of the row.
TEST(TrainerTest, MaskedTokensDoNotDiluteLossAndGradient) {
  std::vector<Document> all = {random_document(20, 1, 24, 1)};
  const TokenizedSet few = set_of(all, 256);
  for (uint64_t i = 0; i < 9; ++i) {
    all.push_back(random_document(20, 1, 24, 10 + i));
    all.back().supervised = false;
  }
  const TokenizedSet masked = set_of(all, 256);
  std::vector<StepReport> reports;
  for (const TokenizedSet* set : {&few, &masked}) {
    BatchStream stream(*set, [] {
      StreamOptions o = stream_options(256, 1);
      o.max_segments = 16;
      return o;
    }());
    EngineOptions options = tiny_options(DType::f32, 256);
    options.max_documents = 16;
    TinyEngine t(options);
    Trainer trainer(t.engine, stream, {"constant", 1e-3, 0, 1}, 1);
    reports.push_back(trainer.step());
  }
  EXPECT_EQ(reports[1].tokens, 10 * reports[0].tokens);
  EXPECT_EQ(reports[1].targets, reports[0].targets);
  EXPECT_NEAR(reports[1].loss(), reports[0].loss(), 1e-6 * reports[0].loss());
  EXPECT_NEAR(reports[1].grad_norm, reports[0].grad_norm, 1e-5 * reports[0].grad_norm);
}

TEST(TrainerTest, ReportsTheWindow) {
  const TokenizedSet set = set_of(documents(), 64);
  BatchStream stream(set, stream_options(64, 2));
  TinyEngine t;
  Trainer trainer(t.engine, stream, {"constant", 1e-3, 0, 4}, 2);
  const StepReport report = trainer.step();
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(report.targets, set.counts().targets);
  EXPECT_EQ(report.tokens, set.counts().tokens);
  EXPECT_EQ(report.slots, 2 * 64);
  EXPECT_EQ(report.documents, 5);
  EXPECT_EQ(report.epoch, 1);
  EXPECT_EQ(report.learning_rate, 1e-3);
  EXPECT_GT(report.grad_norm, 0);
  // The initial loss of V = 24 ids with small logits is about log 24.
  EXPECT_NEAR(report.loss(), std::log(24.0), 1.0);
}

TEST(TrainerTest, TheLossFalls) {
  const TokenizedSet set = set_of(documents(), 64);
  BatchStream stream(set, stream_options(64, 2));
  TinyEngine t;
  Trainer trainer(t.engine, stream, {"constant", 1e-2, 0, 60}, 2);
  const double first = trainer.step().loss();
  double last = first;
  while (!trainer.done()) last = trainer.step().loss();
  EXPECT_LT(last, 0.5 * first);
}

TEST(TrainerTest, ARowWithoutTargetsChangesNothing) {
  // The same window with and without such a row: all the same bits.
  std::vector<Document> masked = documents();
  masked.resize(1);
  const TokenizedSet plain = set_of(masked, 20);
  masked.push_back(random_document(20, 1, 24, 9));
  masked[1].supervised = false;
  const TokenizedSet with_masked = set_of(masked, 20);
  BatchStream one(plain, stream_options(20, 1)), two(with_masked, stream_options(20, 2));
  TinyEngine a(tiny_options(DType::f32, 20)), b(tiny_options(DType::f32, 20));
  Trainer left(a.engine, one, {"constant", 1e-2, 0, 3}, 1), right(b.engine, two, {"constant", 1e-2, 0, 3}, 2);
  for (int step = 0; step < 3; ++step) {
    const StepReport x = left.step(), y = right.step();
    EXPECT_EQ(x.loss_sum, y.loss_sum);
    EXPECT_EQ(x.targets, y.targets);
    EXPECT_EQ(x.grad_norm, y.grad_norm);
  }
  EXPECT_EQ(a.state(), b.state());
}

TEST(TrainerTest, AWindowWithoutTargetsLeavesWeightsMomentsAndDecay) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    std::vector<Document> all = documents();
    for (Document& d : all) d.supervised = false;
    const TokenizedSet set = set_of(all, 64);
    BatchStream stream(set, stream_options(64, 1));
    TinyEngine t(tiny_options(storage));
    // Moments that are not zero.
    t.engine.begin_window();
    t.engine.micro_step(packed_row({documents()[0]}, 64));
    t.engine.update(1e-2, 1, 19);
    const std::vector<std::byte> before = t.state();
    Trainer trainer(t.engine, stream, {"constant", 1e-2, 0, 2}, 1);
    const StepReport report = trainer.step();
    EXPECT_TRUE(report.empty);
    EXPECT_FALSE(report.nonfinite);
    EXPECT_EQ(report.loss(), 0);
    EXPECT_EQ(t.state(), before);
    EXPECT_EQ(trainer.state().at("updates").as_integer(), 0);
    EXPECT_EQ(trainer.state().at("steps").as_integer(), 1);
  }
}

TEST(TrainerTest, AStepThatIsNotFiniteLeavesEverything) {
  // Token 23 occurs in the second document only; its embedding is made infinite for one step.
  std::vector<Document> all = {random_document(20, 1, 23, 1)};
  for (int32_t& id : all[0].ids) id = id == 5 ? 23 : id;
  all[0].ids[4] = 23;
  const TokenizedSet set = set_of(all, 20);
  BatchStream stream(set, stream_options(20, 1));
  TinyEngine t(tiny_options(DType::f32, 20));
  Trainer trainer(t.engine, stream, {"constant", 1e-3, 0, 9}, 1);
  EXPECT_FALSE(trainer.step().nonfinite);
  auto* embedding = reinterpret_cast<float*>(t.engine.store().state()[0].data.data) + 23 * 12;
  const float kept = embedding[0];
  embedding[0] = INFINITY;
  const std::vector<std::byte> before = t.state();
  const StepReport report = trainer.step();
  EXPECT_TRUE(report.nonfinite);
  EXPECT_EQ(t.state(), before);
  EXPECT_EQ(trainer.state().at("updates").as_integer(), 1);
  EXPECT_EQ(trainer.state().at("steps").as_integer(), 2);
  embedding[0] = kept;
  EXPECT_FALSE(trainer.step().nonfinite);
  EXPECT_NE(t.state(), before);
}

TEST(TrainerTest, RestoredStateGoesOnWithTheSameBits) {
  const TokenizedSet set = set_of(documents(), 64);
  const auto train = [&](int64_t stop_at) {
    BatchStream stream(set, stream_options(64, 1));
    TinyEngine t(tiny_options(DType::bf16));
    Trainer trainer(t.engine, stream, {"cosine", 1e-2, 2, 9}, 1);
    if (stop_at == 0) {
      while (!trainer.done()) trainer.step();
      return t.state();
    }
    for (int64_t i = 0; i < stop_at; ++i) trainer.step();
    const json::Value saved = json::parse(json::dump(trainer.state()), "state");
    BatchStream second(set, stream_options(64, 1));
    TinyEngine u(tiny_options(DType::bf16));
    for (size_t i = 0; i < u.engine.store().state().size(); ++i) {
      const Tensor to = u.engine.store().state()[i].data, from = t.engine.store().state()[i].data;
      std::memcpy(to.data, from.data, to.bytes());
    }
    u.engine.store().refresh_storage(u.engine.stream());
    Trainer resumed(u.engine, second, {"cosine", 1e-2, 2, 9}, 1);
    resumed.restore(saved);
    while (!resumed.done()) resumed.step();
    return u.state();
  };
  const std::vector<std::byte> straight = train(0);
  for (const int64_t at : {1, 4, 8}) EXPECT_EQ(train(at), straight) << at;
}

/// The state of a trainer on 64-token rows with accumulation 1 is no state for another of this data and
/// accumulation.
void expect_refused(const TokenizedSet& other, int64_t accumulation, ErrorKind kind) {
  const TokenizedSet set = set_of(documents(), 64);
  BatchStream stream(set, stream_options(64, 1)), second(other, stream_options(64, accumulation));
  TinyEngine t;
  Trainer trainer(t.engine, stream, {"constant", 1e-3, 0, 9}, 1);
  trainer.step();
  Trainer wrong(t.engine, second, {"constant", 1e-3, 0, 9}, accumulation);
  try {
    wrong.restore(trainer.state());
    ADD_FAILURE() << "the state was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
  }
}

TEST(TrainerTest, RestoreRefusesOtherData) {
  std::vector<Document> changed = documents();
  changed[2].ids[7] ^= 1;
  expect_refused(set_of(changed, 64), 1, ErrorKind::data);
}

TEST(TrainerTest, RestoreRefusesAnotherAccumulation) {
  expect_refused(set_of(documents(), 64), 2, ErrorKind::usage);
}

// --- memory and streams ---

TEST(EngineTest, FreshMemoryIsNotTakenForZero) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    const TokenizedSet set = set_of(documents(), 64);
    BatchStream one(set, stream_options(64, 2)), two(set, stream_options(64, 2));
    TinyEngine clean(tiny_options(storage)), dirty(tiny_options(storage), std::make_unique<GarbageDevice>());
    Trainer left(clean.engine, one, {"constant", 1e-2, 0, 3}, 2);
    Trainer right(dirty.engine, two, {"constant", 1e-2, 0, 3}, 2);
    for (int step = 0; step < 3; ++step) EXPECT_EQ(left.step().loss_sum, right.step().loss_sum);
    EXPECT_EQ(clean.state(), dirty.state());
  }
}

TEST(EngineTest, AStreamOnItsOwnThreadGivesTheSameBits) {
  const TokenizedSet set = set_of(documents(), 64);
  BatchStream one(set, stream_options(64, 2)), two(set, stream_options(64, 2));
  TinyEngine direct, threaded(tiny_options(), make_cpu_device(StreamMode::threaded));
  EXPECT_FALSE(threaded.engine.stream().runs_inline());
  Trainer left(direct.engine, one, {"cosine", 1e-2, 1, 4}, 2);
  Trainer right(threaded.engine, two, {"cosine", 1e-2, 1, 4}, 2);
  while (!left.done()) {
    const StepReport a = left.step(), b = right.step();
    EXPECT_EQ(a.loss_sum, b.loss_sum);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
  EXPECT_EQ(direct.state(), threaded.state());
  const EvalResult a = evaluate(direct.engine, set, stream_options(64, 1));
  const EvalResult b = evaluate(threaded.engine, set, stream_options(64, 1));
  EXPECT_EQ(a.loss_sum, b.loss_sum);
}

TEST(EngineTest, StepsDoNotAllocate) {
  const TokenizedSet set = set_of(documents(), 64);
  BatchStream stream(set, stream_options(64, 2));
  TinyEngine t;
  const uint64_t allocations = t.device->allocation_count();
  Trainer trainer(t.engine, stream, {"constant", 1e-2, 0, 3}, 2);
  while (!trainer.done()) trainer.step();
  evaluate(t.engine, set, stream_options(64, 1));
  t.engine.logits(packed_row({documents()[0]}, 64), {3, 19}, [](int64_t, int64_t, const float*) {});
  EXPECT_EQ(t.device->allocation_count(), allocations);
}

// What was measured on two kinds of rows is enough for all: an arena or a scratch that is too small asserts.
TEST(EngineTest, MemoryIsEnoughForEveryLayoutOfARow) {
  constexpr int64_t tokens = 200;
  for (const DType storage : {DType::f32, DType::bf16}) {
    EngineOptions options = tiny_options(storage, tokens);
    options.max_documents = 7;
    options.keep = Keep::outputs();
    TinyEngine t(options, std::make_unique<GarbageDevice>());
    Rng rng(3);
    for (uint64_t round = 0; round < 40; ++round) {
      std::vector<Document> row;
      int64_t left = tokens;
      const uint64_t most = 1 + rng.below(6);
      for (uint64_t d = 0; d < most && left > 0; ++d) {
        const auto length = static_cast<int64_t>(1 + rng.below(static_cast<uint64_t>(left)));
        row.push_back(random_document(length, 1, 24, 100 * round + d));
        left -= length;
      }
      const Batch batch = packed_row(row, tokens);
      t.engine.begin_window();
      t.engine.micro_step(batch);
      const UpdateResult result = t.engine.update(1e-3, 1, std::max<int64_t>(1, batch.num_targets));
      EXPECT_TRUE(std::isfinite(result.loss_sum) && !result.nonfinite) << round;
    }
  }
}

TEST(EvaluateTest, PackedSortedPaddedAndAloneAgree) {
  const TokenizedSet set = set_of(documents(), 64);
  TinyEngine t;
  StreamOptions o = stream_options(64, 1);
  const EvalResult packed = evaluate(t.engine, set, o);
  EXPECT_EQ(packed.targets, set.counts().targets);
  EXPECT_EQ(packed.tokens, set.counts().tokens);
  o.batching = Batching::padded;
  const EvalResult padded = evaluate(t.engine, set, o);
  o.batching = Batching::sorted;
  const EvalResult sorted = evaluate(t.engine, set, o);
  double alone = 0;
  for (const Document& d : documents()) alone += t.engine.evaluate(packed_row({d}, 64));
  for (const EvalResult& other : {padded, sorted}) {
    EXPECT_EQ(other.targets, packed.targets);
    EXPECT_NEAR(other.loss(), packed.loss(), 1e-6 * packed.loss());
  }
  EXPECT_NEAR(alone, packed.loss_sum, 1e-6 * packed.loss_sum);
}

}  // namespace
}  // namespace deltatune
