// The model's calls.
#include "model/model.h"

#include <utility>

#include "base/trace.h"
#include "ops/ops.h"

namespace deltatune {

Model::Model(ModelConfig config, ModelParams params, DType storage, int64_t tokens, int64_t max_documents)
    : config_(std::move(config)),
      params_(std::move(params)),
      storage_(storage),
      tokens_(tokens),
      max_chunks_(deltatune::max_chunks(tokens, max_documents)),
      frequencies_(inverse_frequencies(config_)) {}

void Model::bind(Arena& kept, Arena& shared, Arena& work, const Keep& keep) {
  work_ = &work;
  const Shape hidden{tokens_, config_.hidden_size};
  inv_freq_ = kept.take(DType::f32, {static_cast<int64_t>(frequencies_.size())});
  stream_a_TD_ = kept.take(storage_, hidden);
  stream_b_TD_ = kept.take(storage_, hidden);
  saved_.clear();
  for (int64_t layer = 0; layer < config_.layers(); ++layer) {
    const Arena::Scope scope(shared);
    SavedLayout layout(kept, shared, keep.of(layer), storage_, tokens_);
    saved_.push_back(
        Block::saved(layout, config_, config_.full_attention[static_cast<size_t>(layer)], max_chunks_));
  }
}

void Model::initialise(Stream& s) {
  s.upload(inv_freq_, frequencies_.data());
}

Row Model::row(const RowInputs& in) const {
  Row row;
  row.segments = in.segments;
  row.inv_freq = inv_freq_;
  row.eps = config_.rms_norm_eps;
  row.storage = storage_;
  row.work = work_;
  row.fresh_gradients = in.fresh_gradients;
  return row;
}

Head::Weights Model::head_weights(const std::vector<CTensor>& weights) const {
  return {weights[static_cast<size_t>(params_.final_norm)], weights[static_cast<size_t>(params_.head)]};
}

void Model::embed(Stream& s, const std::vector<CTensor>& weights, const RowInputs& in) {
  ops::embedding_forward(s, begin_embedded(), in.tokens_T, weights[static_cast<size_t>(params_.embedding)]);
}

Tensor Model::begin_embedded() {
  const Tensor x_TD = saved_.front().input_TD;
  residual_ = {x_TD, {}};
  return x_TD;
}

void Model::forward_block(Stream& s, const std::vector<CTensor>& weights, int64_t layer,
                          const RowInputs& in) {
  const auto l = static_cast<size_t>(layer);
  const Block::Weights w = Block::weights(params_.layers[l], weights);
  residual_ = Block::forward(s, w, residual_, stream_a_TD_, stream_b_TD_, saved_[l], config_, row(in));
}

void Model::loss(Stream& s, const std::vector<CTensor>& weights, const std::vector<Tensor>& grads,
                 Tensor loss_sum_1, bool train, const RowInputs& in) {
  Head::Grads g;
  if (train) g = {grads[static_cast<size_t>(params_.final_norm)], grads[static_cast<size_t>(params_.head)]};
  Head::loss(s, head_weights(weights), g, residual_, train ? gradient_TD(config_.layers() - 1) : Tensor{},
             loss_sum_1, in.targets, config_, row(in));
}

void Model::logits(Stream& s, const std::vector<CTensor>& weights, const Head::Targets& rows,
                   const RowInputs& in, const std::function<void(int64_t, CTensor)>& each) {
  Head::logits(s, head_weights(weights), residual_, rows, config_, row(in), each);
}

void Model::recompute_block(Stream& s, const std::vector<CTensor>& weights, int64_t layer,
                            const RowInputs& in) {
  const TracePhaseScope phase(TracePhase::recompute);
  const auto l = static_cast<size_t>(layer);
  Block::recompute(s, Block::weights(params_.layers[l], weights), saved_[l], config_, row(in));
}

void Model::backward_block(Stream& s, const std::vector<CTensor>& weights, const std::vector<Tensor>& grads,
                           int64_t layer, const RowInputs& in) {
  const auto l = static_cast<size_t>(layer);
  const Block::Weights w = Block::weights(params_.layers[l], weights);
  const Block::Grads g = Block::grads(params_.layers[l], grads);
  recompute_block(s, weights, layer, in);
  Block::backward(s, w, g, gradient_TD(layer), gradient_TD(layer - 1), saved_[l], config_, row(in));
}

void Model::backward_embedding(Stream& s, const std::vector<Tensor>& grads, const RowInputs& in) {
  ops::embedding_backward(s, grads[static_cast<size_t>(params_.embedding)], gradient_TD(-1), in.tokens_T,
                          in.order_T);
}

}  // namespace deltatune
