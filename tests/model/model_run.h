// A small model with its own buffers, for the tests of this folder: f64 too, which the parameter store does
// not hold. All memory starts as NaN, so that whatever is read before it was written shows in the results.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "base/json.h"
#include "model/model.h"
#include "ops/parity.h"
#include "train/device_batch.h"
#include "train/engine.h"

namespace deltatune {

/// One delta-rule layer and one attention layer, every size different, value heads = 2 x key heads, query
/// heads = 2 x kv heads.
inline ModelConfig tiny_config(bool tied, int64_t vocab = 24) {
  json::Value root = json::parse(R"({"model_type": "qwen3_5_text", "hidden_size": 12, "intermediate_size": 20,
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_key_head_dim": 5, "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}})",
                                 "tiny");
  root.set("vocab_size", vocab);
  root.set("tie_word_embeddings", tied);
  return ModelConfig::from_json(root, "tiny");
}

/// A packed row. targets[t] is the token after t where that is of the same document and `supervise` says so.
struct Document {
  std::vector<int32_t> ids;
  bool supervised = true;
};
inline Batch packed_row(const std::vector<Document>& documents, int64_t tokens) {
  Batch b;
  b.cu_seqlens = {0};
  for (const Document& d : documents) {
    for (size_t t = 0; t < d.ids.size(); ++t) {
      b.tokens.push_back(d.ids[t]);
      b.positions.push_back(static_cast<int32_t>(t));
      b.targets.push_back(d.supervised && t + 1 < d.ids.size() ? d.ids[t + 1] : -100);
      b.num_targets += b.targets.back() != -100;
    }
    b.cu_seqlens.push_back(static_cast<int32_t>(b.tokens.size()));
    b.lengths.push_back(static_cast<int32_t>(d.ids.size()));
  }
  b.documents = static_cast<int64_t>(documents.size());
  b.real_tokens = static_cast<int64_t>(b.tokens.size());
  DELTATUNE_ASSERT(b.real_tokens <= tokens);
  for (int32_t at = 0; static_cast<int64_t>(b.tokens.size()) < tokens; ++at) {
    b.tokens.push_back(0);
    b.positions.push_back(at);
    b.targets.push_back(-100);
  }
  if (b.cu_seqlens.back() != tokens) b.cu_seqlens.push_back(static_cast<int32_t>(tokens));
  return b;
}

/// `length` ids in [low, high).
inline Document random_document(int64_t length, int32_t low, int32_t high, uint64_t stream) {
  Rng rng(77, stream);
  Document d;
  for (int64_t t = 0; t < length; ++t)
    d.ids.push_back(low + static_cast<int32_t>(rng.below(static_cast<uint64_t>(high - low))));
  return d;
}

class ModelRun {
 public:
  ModelRun(const ModelConfig& config, bool tied, DType storage, int64_t tokens, int64_t max_documents,
           Keep keep)
      : model_(config, make_params(config, tied), storage, tokens, max_documents),
        batch_(tokens, max_documents),
        storage_(storage) {
    for (const Param& param : table().params) {
      const DType dtype = param.keep_f32 ? compute_dtype(storage) : storage;
      weights_.push_back(start_values(param, dtype, weights_.size()));
      grads_.emplace_back(compute_dtype(storage), param.shape);
    }
    place(keep, max_documents);
  }

  const ParamTable& table() const { return model_.params().table; }
  const Model& model() const { return model_; }
  std::vector<parity::Array>& weights() { return weights_; }
  const parity::Array& gradient(int param) const { return grads_[static_cast<size_t>(param)]; }
  const std::vector<parity::Array>& gradients() const { return grads_; }

  /// Every head forgets slowly: A = exp(A_log) = a.
  void set_decay(double a) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (table().params[i].init != Init::log_uniform) continue;
      weights_[i].set(std::vector<double>(static_cast<size_t>(weights_[i].count()), std::log(a)));
    }
  }

  /// Loss sum, without gradients.
  double loss(const Batch& batch) {
    const RowInputs row = forward(batch);
    return head(row, false);
  }
  /// Loss sum; gradients() are those of the loss sum.
  double step(const Batch& batch) {
    for (parity::Array& g : grads_) g.set(std::vector<double>(static_cast<size_t>(g.count()), 0.0));
    return backward(batch, false);
  }
  /// The same, with the gradients that one product gives written over NaN instead of added to zero.
  double fresh_step(const Batch& batch) {
    for (size_t i = 0; i < grads_.size(); ++i) {
      const double start = table().params[i].product_gradient ? NAN : 0;
      grads_[i].set(std::vector<double>(static_cast<size_t>(grads_[i].count()), start));
    }
    return backward(batch, true);
  }
  /// Logits of all T slots, raw bytes of [T, V] in storage dtype.
  std::vector<std::byte> logits(const Batch& batch) {
    Batch all = batch;
    std::fill(all.targets.begin(), all.targets.end(), 0);
    all.num_targets = static_cast<int64_t>(all.targets.size());
    const RowInputs row = forward(all);
    std::vector<std::byte> out;
    model_.logits(*stream_, views(), row.targets, row, [&](int64_t, CTensor piece) {
      const size_t at = out.size();
      out.resize(at + piece.bytes());
      stream_->download(out.data() + at, piece);
      stream_->sync();
    });
    return out;
  }

 private:
  double backward(const Batch& batch, bool fresh) {
    RowInputs row = forward(batch);
    row.fresh_gradients = fresh;
    const double sum = head(row, true);
    for (int64_t l = model_.config().layers(); l-- > 0;)
      model_.backward_block(*stream_, views(), gradient_views(), l, row);
    model_.backward_embedding(*stream_, gradient_views(), row);
    stream_->sync();
    return sum;
  }
  static parity::Array start_values(const Param& param, DType dtype, uint64_t stream) {
    const int64_t columns = param.shape.rank == 2 ? param.shape[1] : 1;
    std::vector<double> v = parity::normal(param.shape.count(), 300 + stream);
    for (double& x : v) {
      if (param.init == Init::normal) x *= 1 / std::sqrt(static_cast<double>(columns));
      if (param.init == Init::zeros) x *= 0.3;
      if (param.init == Init::ones) x = 1 + 0.3 * x;
      if (param.init == Init::log_uniform) x = std::log(0.05) + 0.5 * x;
    }
    return {dtype, param.shape, v};
  }

  void place(Keep keep, int64_t max_documents) {
    Arena kept, shared, work, batch;
    bind(kept, shared, work, batch, keep);
    const auto null = make_null_device(Target::cpu);
    stream_ = null->make_stream("measure");
    for (const int64_t length : {model_.tokens(), std::max<int64_t>(1, model_.tokens() / max_documents)})
      step_without_memory(synthetic_batch(model_.tokens(), length, max_documents));
    const size_t scratch = stream_->scratch_wish();
    stream_ = device_->make_stream("model");
    for (const size_t size :
         {kept.high_water(), shared.high_water(), work.high_water(), batch.high_water(), scratch}) {
      buffers_.push_back(device_->allocate(size, "test", "test", Lifetime::run));
      std::memset(buffers_.back().data(), 0xff, size);
    }
    kept_ = Arena(buffers_[0].span());
    shared_ = Arena(buffers_[1].span());
    work_ = Arena(buffers_[2].span());
    batch_arena_ = Arena(buffers_[3].span());
    stream_->set_scratch(buffers_[4].span());
    bind(kept_, shared_, work_, batch_arena_, keep);
    model_.initialise(*stream_);
  }
  void bind(Arena& kept, Arena& shared, Arena& work, Arena& batch, Keep keep) {
    model_.bind(kept, shared, work, keep);
    batch_.bind(batch);
    loss_ = batch.take(DType::f64, {1});
  }
  void step_without_memory(const Batch& batch) {
    const RowInputs row = forward(batch);
    model_.loss(*stream_, views(), gradient_views(), loss_, true, row);
    for (int64_t l = model_.config().layers(); l-- > 0;)
      model_.backward_block(*stream_, views(), gradient_views(), l, row);
    model_.backward_embedding(*stream_, gradient_views(), row);
    Head::Targets all = row.targets;
    all.count = model_.tokens();
    model_.logits(*stream_, views(), all, row, [](int64_t, CTensor) {});
  }
  RowInputs forward(const Batch& batch) {
    const RowInputs row = batch_.upload(*stream_, batch);
    model_.embed(*stream_, views(), row);
    for (int64_t l = 0; l < model_.config().layers(); ++l) model_.forward_block(*stream_, views(), l, row);
    return row;
  }
  double head(const RowInputs& row, bool train) {
    double sum = 0;
    stream_->upload(loss_, &sum);
    model_.loss(*stream_, views(), gradient_views(), loss_, train, row);
    stream_->download(&sum, loss_);
    stream_->sync();
    return sum;
  }
  std::vector<CTensor> views() const {
    std::vector<CTensor> out;
    for (const parity::Array& w : weights_) out.push_back(w.view());
    return out;
  }
  std::vector<Tensor> gradient_views() {
    std::vector<Tensor> out;
    for (parity::Array& g : grads_) out.push_back(g.view());
    return out;
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
  Model model_;
  DeviceBatch batch_;
  DType storage_;
  std::vector<parity::Array> weights_, grads_;
  Arena kept_, shared_, work_, batch_arena_;
  Tensor loss_;
};

}  // namespace deltatune
