// ParamStore: slices in and out, AdamW through it against a double reference, the initialiser, and the bytes
// a world of eight would move.
#include "shard/param_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "cpu/device.h"
#include "io/test_files.h"
#include "model/model_run.h"
#include "ops/null_device.h"
#include "shard/garbage_device.h"
#include "train/engine.h"

namespace deltatune {
namespace {

struct Store {
  Store(bool tied, ParamStore::Options options)
      : params(make_params(tiny_config(tied), tied)), store(device, *comm, params.table, options) {
    stream = device.make_stream("test");
    scalars = device.allocate(32, "scalars", "test", Lifetime::run);
    scratch = device.allocate(1 << 20, "scratch", "test", Lifetime::op);
    stream->set_scratch(scratch.span());
  }
  std::vector<float> read(const Param& p, const ParamSlice& s) {
    std::vector<float> out(static_cast<size_t>(s.rows * (p.shape.rank == 2 ? p.shape[1] : 1)));
    store.read_slice(*stream, p, s, out.data());
    return out;
  }
  template <class F>
  void each_slice(F&& f) {
    for (const Param& p : params.table.params) {
      for (const ParamSlice& s : p.slices) f(p, s);
    }
  }
  // Padding of every state buffer, which no parameter owns.
  void expect_padding_is_zero() {
    const ShardLayout layout(params.table, 1);
    for (const StateTensor& state : store.state()) {
      std::vector<bool> owned(static_cast<size_t>(state.data.count()));
      for (size_t i = 0; i < params.table.params.size(); ++i) {
        const Param& p = params.table.params[i];
        const std::string group = p.keep_f32 ? "f32" : params.table.groups[static_cast<size_t>(p.group)].name;
        if (state.name.substr(0, state.name.rfind('.')) != group) continue;
        for (int64_t e = 0; e < p.shape.count(); ++e)
          owned[static_cast<size_t>(layout.placements[i].offset + e)] = true;
      }
      int64_t padding = 0;
      for (size_t i = 0; i < owned.size(); ++i) {
        if (owned[i]) continue;
        ++padding;
        float value = 0;
        convert(&value, DType::f32, state.data.data + i * size_of(state.data.dtype), state.data.dtype, 1);
        ASSERT_EQ(value, 0) << state.name << "[" << i << "]";
      }
      EXPECT_GT(padding, 0) << state.name;
    }
  }

  GarbageDevice device;
  std::unique_ptr<Communicator> comm = make_solo_communicator();
  ModelParams params;
  ParamStore store;
  std::unique_ptr<Stream> stream;
  Buffer scalars, scratch;
};

// Every tensor of the model with values that bf16 cannot hold, in one of three dtypes.
MemorySource checkpoint_for(const ParamTable& table, std::map<std::string, std::vector<float>>& stored) {
  MemorySource source;
  uint64_t stream = 0;
  for (const Param& p : table.params) {
    for (const ParamSlice& s : p.slices) {
      const DType dtype = std::array{DType::f32, DType::bf16, DType::f16}[stream % 3];
      const int64_t count = s.rows * (p.shape.rank == 2 ? p.shape[1] : 1);
      const std::vector<double> values = parity::normal(count, 700 + stream++);
      std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(dtype));
      convert(bytes.data(), dtype, values.data(), DType::f64, count);
      std::vector<float> back(static_cast<size_t>(count));
      convert(back.data(), DType::f32, bytes.data(), dtype, count);
      stored[s.hf_name] = back;
      source.put(s.hf_name, dtype, s.hf_shape, bytes);
    }
  }
  return source;
}

TEST(ParamStoreTest, SlicesComeBackAsTheyWere) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    for (const bool tied : {false, true}) {
      Store t(tied, {storage, true, false, 0, {}});
      std::map<std::string, std::vector<float>> stored;
      const MemorySource source = checkpoint_for(t.params.table, stored);
      t.store.load(*t.stream, source);
      // Masters are f32: even a bf16 run gives back every bit of an f32 tensor.
      t.each_slice([&](const Param& p, const ParamSlice& s) { EXPECT_EQ(t.read(p, s), stored[s.hf_name]); });
      t.expect_padding_is_zero();
      // The storage copy is the master rounded to nearest; keep_f32 parameters are not rounded.
      for (size_t i = 0; i < t.params.table.params.size(); ++i) {
        const Param& p = t.params.table.params[i];
        const CTensor w = t.store.weights()[i];
        EXPECT_EQ(w.dtype, p.keep_f32 ? DType::f32 : storage) << p.name;
        std::vector<float> in_use(static_cast<size_t>(w.count())), expected;
        convert(in_use.data(), DType::f32, w.data, w.dtype, w.count());
        for (const ParamSlice& s : p.slices) {
          for (const float x : stored[s.hf_name])
            expected.push_back(w.dtype == DType::bf16 ? widen(narrow<bf16>(x)) : x);
        }
        EXPECT_EQ(in_use, expected) << p.name;
      }
    }
  }
}

TEST(ParamStoreTest, LoadRefusesWhatDoesNotFit) {
  Store t(false, {DType::f32, true, false, 0, {}});
  std::map<std::string, std::vector<float>> stored;
  MemorySource source = checkpoint_for(t.params.table, stored);
  source.put("lm_head.weight", {3, 4}, std::vector<float>(12));
  const std::string shape = error_text(ErrorKind::model, [&] { t.store.load(*t.stream, source); });
  EXPECT_TRUE(has(shape, "lm_head.weight") && has(shape, "[3, 4]") && has(shape, "[24, 12]")) << shape;
  std::vector<float> bad(24 * 12, 1.0f);
  bad[17] = NAN;
  bad[18] = INFINITY;
  source.put("lm_head.weight", {24, 12}, bad);
  const std::string nan = error_text(ErrorKind::model, [&] { t.store.load(*t.stream, source); });
  EXPECT_TRUE(has(nan, "lm_head.weight") && has(nan, "2 NaN or infinite")) << nan;
  const MemorySource none;
  const std::string missing = error_text(ErrorKind::model, [&] { t.store.load(*t.stream, none); });
  EXPECT_TRUE(has(missing, "model.embed_tokens.weight")) << missing;
}

// --- AdamW through the store ---

struct Reference {
  std::vector<double> p, m, v;
  bool decay;
};

void check_updates(DType storage, float clip, bool decay_all) {
  const AdamwOptions adamw{0.9f, 0.95f, 1e-8f, 0};
  constexpr float weight_decay = 0.1f;
  Store t(true, {storage, true, decay_all, weight_decay, adamw});
  t.store.initialise(*t.stream, 3, 0.02);
  std::vector<Reference> reference;
  const auto& params = t.params.table.params;
  for (const Param& p : params) {
    Reference r{{}, {}, {}, decay_all || p.decay};
    for (const float x : t.read(p, {"", 0, p.shape[0], {}})) r.p.push_back(double{x});
    r.m.assign(r.p.size(), 0);
    r.v.assign(r.p.size(), 0);
    reference.push_back(r);
  }
  const double rate = 1e-3;
  for (int step = 1; step <= 3; ++step) {
    constexpr double targets = 7;
    t.store.zero_gradients(*t.stream);
    double squares = 0;
    std::vector<std::vector<double>> gradients;
    for (size_t i = 0; i < params.size(); ++i) {
      const parity::Array g =
          parity::random(DType::f32, params[i].shape, 40 * static_cast<uint64_t>(step) + i, 2);
      std::memcpy(t.store.grads()[i].data, g.view().data, g.bytes());
      gradients.push_back(g.values());
      for (double& x : gradients.back()) {
        x /= targets;
        squares += x * x;
      }
    }
    std::array<float, StepScalar::count> scalars{};
    scalars[StepScalar::learning_rate] = static_cast<float>(rate);
    scalars[StepScalar::bias_correction1] = static_cast<float>(1 - std::pow(double{adamw.beta1}, step));
    scalars[StepScalar::bias_correction2] = static_cast<float>(1 - std::pow(double{adamw.beta2}, step));
    scalars[StepScalar::inverse_count] = static_cast<float>(1 / targets);
    const Tensor on_device{t.scalars.data(), DType::f32, {StepScalar::count}};
    t.stream->upload(on_device, scalars.data());
    t.store.step(*t.stream, on_device, clip);
    t.stream->download(scalars.data(), on_device);
    const double norm = std::sqrt(squares);
    EXPECT_NEAR(double{scalars[StepScalar::gradient_norm]}, norm, 1e-6 * norm);
    const double scale = clip > 0 ? std::min(1.0, double{clip} / (norm + 1e-6)) : 1.0;
    EXPECT_EQ(scale<1, clip> 0) << "the case must clip";
    for (size_t i = 0; i < params.size(); ++i) {
      Reference& r = reference[i];
      for (size_t e = 0; e < r.p.size(); ++e) {
        const double g = gradients[i][e] * scale;
        if (r.decay) r.p[e] *= 1 - rate * double{weight_decay};
        r.m[e] = double{adamw.beta1} * r.m[e] + (1 - double{adamw.beta1}) * g;
        r.v[e] = double{adamw.beta2} * r.v[e] + (1 - double{adamw.beta2}) * g * g;
        r.p[e] -= rate * (r.m[e] / (1 - std::pow(double{adamw.beta1}, step))) /
                  (std::sqrt(r.v[e] / (1 - std::pow(double{adamw.beta2}, step))) + double{adamw.eps});
      }
    }
  }
  for (size_t i = 0; i < params.size(); ++i) {
    const std::vector<float> ours = t.read(params[i], {"", 0, params[i].shape[0], {}});
    for (size_t e = 0; e < ours.size(); ++e)
      ASSERT_NEAR(double{ours[e]}, reference[i].p[e], 1e-6 * std::max(1.0, std::abs(reference[i].p[e])))
          << params[i].name << "[" << e << "]";
  }
  t.expect_padding_is_zero();
}

TEST(ParamStoreTest, ThreeStepsEqualTheDoubleReference) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    check_updates(storage, 1.0f, false);
    check_updates(storage, 1.0f, true);
    check_updates(storage, 0, false);
  }
}

TEST(ParamStoreTest, WithoutTrainingThereIsOnlyTheWeight) {
  Store t(true, {DType::bf16, false, false, 0, {}});
  t.store.initialise(*t.stream, 3, 0.02);
  for (const StateTensor& state : t.store.state())
    EXPECT_TRUE(state.name.ends_with(".weights")) << state.name;
  std::vector<std::string> regions;
  for (const Region& region : t.device.plan().regions()) {
    if (region.owner == "parameters") regions.push_back(region.name);
  }
  EXPECT_EQ(regions, (std::vector<std::string>{"weights bf16", "weights kept in f32"}));
}

// --- the initialiser ---

TEST(ParamStoreTest, InitialValuesFollowHuggingFace) {
  Store t(false, {DType::f32, false, false, 0, {}});
  t.store.initialise(*t.stream, 42, 0.02);
  std::vector<double> normals, uniforms;
  for (const Param& p : t.params.table.params) {
    for (const float x : t.read(p, {"", 0, p.shape[0], {}})) {
      if (p.init == Init::zeros || p.init == Init::ones) {
        EXPECT_EQ(x, p.init == Init::ones ? 1.0f : 0.0f) << p.name;
      }
      if (p.init == Init::normal) normals.push_back(double{x} / 0.02);
      if (p.init == Init::log_uniform) uniforms.push_back(std::exp(double{x}));
    }
  }
  double mean = 0, square = 0, fourth = 0;
  for (const double x : normals) {
    mean += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  const auto n = static_cast<double>(normals.size());
  // Five standard errors: 1, sqrt 2 and sqrt 96 over sqrt n.
  EXPECT_NEAR(mean / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_EQ(uniforms.size(), 2u);
  for (const double a : uniforms) EXPECT_TRUE(a >= 0.01 && a <= 16) << a;
}

TEST(ParamStoreTest, InitialValuesArePureFunctionsOfTheSeed) {
  const auto values = [](uint64_t seed, DType storage) {
    Store t(false, {storage, true, false, 0, {}});
    t.store.initialise(*t.stream, seed, 0.02);
    std::vector<float> out;
    t.each_slice([&](const Param& p, const ParamSlice& s) {
      for (const float x : t.read(p, s)) out.push_back(x);
    });
    return out;
  };
  const std::vector<float> first = values(42, DType::f32);
  EXPECT_EQ(first, values(42, DType::f32));
  EXPECT_EQ(first, values(42, DType::bf16));
  EXPECT_NE(first, values(43, DType::f32));
}

// --- a pretended world ---

TEST(ParamStoreTest, AWorldOfEightMovesWhatTheFormulaSays) {
  const auto device = make_null_device(Target::cuda);
  const auto comm = make_null_communicator(8);
  EngineOptions options;
  options.storage = DType::bf16;
  options.tokens = 128;
  options.max_documents = 4;
  Engine engine(*device, *comm, tiny_config(false), false, options);
  const ModelParams params = make_params(tiny_config(false), false);
  const ShardLayout layout(params.table, 8);
  engine.begin_window();
  engine.micro_step(synthetic_batch(128, 32, 4));
  const double share = 7.0 / 8;
  // Each group is gathered once going forward; going backward, the two last blocks' slots still hold them,
  // and this model has no more than two.
  double gathers = 0, reductions = 0;
  for (const int64_t padded : layout.padded) {
    gathers += 2.0 * static_cast<double>(padded) * share;
    reductions += 4.0 * static_cast<double>(padded) * share;
  }
  EXPECT_EQ(comm->totals().gather_bytes, gathers);
  EXPECT_EQ(comm->totals().reduce_bytes, reductions);
  engine.update(1e-3, 1, 1);
  // Gradients of the f32 group, the loss sum and the norm: all-reduced, which sends both halves.
  reductions += 2 * (4.0 * static_cast<double>(layout.f32_elements) + 8 + 8) * share;
  EXPECT_EQ(comm->totals().reduce_bytes, reductions);
}

}  // namespace
}  // namespace deltatune
