// The model: configuration, parameters, saved activations of all blocks, and the calls of a step in order:
//   embed, forward_block(0..L-1), loss, then backward_block(L-1..0), backward_embedding.
//
// The caller holds the weights and gradients (lists indexed like ParamTable::params) and only has to have the
// ones of the called block there. The model does not know where it runs or whether it is sharded.
#pragma once

#include <vector>

#include "model/block.h"
#include "model/config.h"
#include "model/head.h"
#include "model/params.h"

namespace deltatune {

/// One packed row on the device.
struct RowInputs {
  CTensor tokens_T;  ///< i32
  CTensor order_T;   ///< i32: positions sorted by token id
  CTensor ids_2T;    ///< i32: the two, one behind the other
  Segments segments;
  Head::Targets targets;
  bool fresh_gradients = false;  ///< Row::fresh_gradients
};

class Model {
 public:
  Model(ModelConfig config, ModelParams params, DType storage, int64_t tokens, int64_t max_documents);

  const ModelConfig& config() const { return config_; }
  const ModelParams& params() const { return params_; }
  int64_t tokens() const { return tokens_; }
  int64_t max_chunks() const { return max_chunks_; }
  DType storage() const { return storage_; }

  /// Places all activations: kept ones in `kept`, the others in `shared`; temporaries come from `work` during
  /// calls. Called once to measure and once for real.
  void bind(Arena& kept, Arena& shared, Arena& work, const Keep& keep);
  /// Uploads constants (rotary frequencies). After the real bind().
  void initialise(Stream&);

  void embed(Stream&, const std::vector<CTensor>& weights, const RowInputs&);
  /// In place of embed(): where the caller writes the tokens' embeddings.
  Tensor begin_embedded();
  void forward_block(Stream&, const std::vector<CTensor>& weights, int64_t layer, const RowInputs&);
  /// Adds to loss_sum_1; with `train` also the head's gradients and the first gradient of hidden states.
  void loss(Stream&, const std::vector<CTensor>& weights, const std::vector<Tensor>& grads, Tensor loss_sum_1,
            bool train, const RowInputs&);
  void logits(Stream&, const std::vector<CTensor>& weights, const Head::Targets& rows, const RowInputs&,
              const std::function<void(int64_t, CTensor)>& each);
  /// The first half of backward_block: computes again what the block has not kept.
  void recompute_block(Stream&, const std::vector<CTensor>& weights, int64_t layer, const RowInputs&);
  void backward_block(Stream&, const std::vector<CTensor>& weights, const std::vector<Tensor>& grads,
                      int64_t layer, const RowInputs&);
  void backward_embedding(Stream&, const std::vector<Tensor>& grads, const RowInputs&);
  /// In place of backward_embedding(): the gradient of the tokens' embeddings.
  CTensor embedded_gradient_TD() const { return gradient_TD(-1); }

  /// What enters block `layer`, [T, D]; of the row that last went forward, until the next one does.
  CTensor block_input(int64_t layer) const { return saved_[static_cast<size_t>(layer)].input_TD; }

 private:
  Row row(const RowInputs&) const;
  /// Where the gradient of block `layer`'s output lies (layer -1: of the embedding's). It changes sides with
  /// every block, and starts in a.
  Tensor gradient_TD(int64_t layer) const {
    return (config_.layers() - layer) % 2 == 1 ? stream_a_TD_ : stream_b_TD_;
  }
  Head::Weights head_weights(const std::vector<CTensor>& weights) const;

  ModelConfig config_;
  ModelParams params_;
  DType storage_;
  int64_t tokens_;
  int64_t max_chunks_;
  std::vector<float> frequencies_;

  Arena* work_ = nullptr;
  Tensor inv_freq_;
  std::vector<Block::Saved> saved_;
  // Between blocks: the residual pair going forward, the gradient's ping and pong going backward.
  Tensor stream_a_TD_, stream_b_TD_;
  Residual residual_;
};

}  // namespace deltatune
