// Engines of the ranks of one run, each on a thread of its own, on a small hybrid model of five layers.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/thread_ranks.h"
#include "train/tiny_engine.h"

namespace deltatune {

/// Five layers, the third one attention: more blocks than there are slots for them.
inline ModelConfig hybrid_config(bool tied, int64_t vocabulary = 24) {
  json::Value root = json::parse(R"({"model_type": "qwen3_5_text", "hidden_size": 12, "intermediate_size": 20,
    "num_hidden_layers": 5, "layer_types": ["linear_attention", "linear_attention", "full_attention",
    "linear_attention", "linear_attention"], "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_key_head_dim": 5, "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}})",
                                 "hybrid");
  root.set("tie_word_embeddings", tied);
  root.set("vocab_size", vocabulary);
  return ModelConfig::from_json(root, "hybrid");
}

struct RankEngine {
  RankEngine(Communicator& comm, const EngineOptions& options, bool tied = true,
             std::unique_ptr<Device> on = make_cpu_device(), int64_t vocabulary = 24)
      : device(std::move(on)), engine(*device, comm, hybrid_config(tied, vocabulary), tied, options) {
    engine.store().initialise(engine.stream(), 11, 0.08);
  }
  /// Every parameter (or gradient), on rank 0; all ranks call it together.
  std::vector<double> weights() {
    return all([&](const Param& p, const ParamSlice& s, float* to) {
      engine.store().read_slice(engine.stream(), p, s, to);
    });
  }
  std::vector<double> gradients() {
    return all([&](const Param& p, const ParamSlice& s, float* to) {
      engine.store().read_gradient(engine.stream(), p, s, to);
    });
  }
  /// The bytes of this rank's weights, masters and moments.
  std::vector<std::byte> state() {
    std::vector<std::byte> out;
    engine.stream().sync();
    for (const StateTensor& tensor : engine.store().state()) {
      out.insert(out.end(), tensor.data.data, tensor.data.data + tensor.data.bytes());
    }
    return out;
  }

  std::unique_ptr<Device> device;
  Engine engine;

 private:
  template <class Read>
  std::vector<double> all(const Read& read) {
    std::vector<double> out;
    for (const Param& p : engine.store().table().params) {
      std::vector<float> values(static_cast<size_t>(p.shape.count()));
      read(p, {"", 0, p.shape[0], {}}, values.data());
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }
};

}  // namespace deltatune
