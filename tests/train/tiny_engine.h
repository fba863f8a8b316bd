// A small engine with its data, and what the tests of this folder read from it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu/device.h"
#include "data/batch_stream.h"
#include "data/dataset.h"
#include "model/model_run.h"
#include "train/engine.h"
#include "train/engine_state.h"
#include "train/step.h"

namespace deltatune {

/// Tokenised rows as a set; rows that are not supervised stay in it.
inline TokenizedSet set_of(const std::vector<Document>& documents, int64_t max_tokens) {
  DatasetOptions options;
  options.max_length = max_tokens;
  options.max_tokens = max_tokens;
  options.vocab_size = 1 << 20;
  options.keep_all_masked = true;
  json::Array rows;
  for (const Document& d : documents) {
    json::Array ids, labels;
    for (const int32_t id : d.ids) {
      ids.emplace_back(int64_t{id});
      labels.emplace_back(d.supervised ? int64_t{id} : int64_t{-100});
    }
    rows.push_back(json::Object{{"input_ids", std::move(ids)}, {"labels", std::move(labels)}});
  }
  TokenizedSetBuilder builder(options, {});
  builder.add_rows(rows, "made up");
  return builder.finish();
}

inline EngineOptions tiny_options(DType storage = DType::f32, int64_t tokens = 64) {
  EngineOptions o;
  o.storage = storage;
  o.tokens = tokens;
  o.max_documents = 8;
  o.weight_decay = 0.1f;
  o.max_grad_norm = 1;
  return o;
}

struct TinyEngine {
  explicit TinyEngine(const EngineOptions& options = tiny_options(),
                      std::unique_ptr<Device> on = make_cpu_device(), int64_t vocab = 24)
      : device(std::move(on)), engine(*device, *comm, tiny_config(true, vocab), true, options) {
    engine.store().initialise(engine.stream(), 11, 0.3);
  }
  /// Bytes of all weights, masters and moments.
  std::vector<std::byte> state() { return state_bytes(engine); }
  std::vector<double> gradients() {
    std::vector<double> out;
    for (const Param& p : engine.store().table().params) {
      std::vector<float> values(static_cast<size_t>(p.shape.count()));
      engine.store().read_gradient(engine.stream(), p, {"", 0, p.shape[0], {}}, values.data());
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm = make_solo_communicator();
  Engine engine;
};

}  // namespace deltatune
