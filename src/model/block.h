// One decoder block: input = residual + delta; mid = input + Mixer(norm1(input)); output = mid +
// Mlp(norm2(mid)).
//
// The output is handed on as the pair (mid, delta): the next block's first op adds the two and normalises in
// one pass over memory, and recomputing never needs down_proj.
#pragma once

#include "model/attention.h"
#include "model/delta_net.h"
#include "model/mlp.h"
#include "model/params.h"

namespace deltatune {

/// The stream of hidden states between blocks: its value is sum + delta (delta empty: just sum).
struct Residual {
  CTensor sum_TD;
  CTensor delta_TD;
};

struct Block {
  struct Weights {
    CTensor input_norm_D, post_norm_D;
    bool full_attention = false;
    Attention::Weights attention;
    DeltaNet::Weights delta_net;
    Mlp::Weights mlp;
  };
  struct Grads {
    Tensor input_norm_D, post_norm_D;
    Attention::Grads attention;
    DeltaNet::Grads delta_net;
    Mlp::Grads mlp;
  };
  struct Saved {
    Tensor input_TD;  ///< always kept
    Slot x1_TD, rstd1_T;
    Attention::Saved attention;
    DeltaNet::Saved delta_net;
    Slot mid_TD, x2_TD, rstd2_T;
    Mlp::Saved mlp;
  };

  /// Views of one layer's parameters, out of lists indexed like ParamTable::params.
  static Weights weights(const LayerParams&, const std::vector<CTensor>& params);
  static Grads grads(const LayerParams&, const std::vector<Tensor>& grads);
  static Saved saved(SavedLayout&, const ModelConfig&, bool full_attention, int64_t max_chunks);

  /// Writes saved.input (unless `in` is that very tensor, as in the first block), and returns the output.
  /// mid_TD and delta_TD are the buffers between blocks; `in` may lie in them.
  static Residual forward(Stream&, const Weights&, Residual in, Tensor mid_TD, Tensor delta_TD, const Saved&,
                          const ModelConfig&, const Row&);
  /// Fills every slot that was not kept, from saved.input.
  static void recompute(Stream&, const Weights&, const Saved&, const ModelConfig&, const Row&);
  /// dout_TD, the gradient of the output, to din_TD, that of the input; different memory.
  static void backward(Stream&, const Weights&, const Grads&, CTensor dout_TD, Tensor din_TD, const Saved&,
                       const ModelConfig&, const Row&);
};

}  // namespace deltatune
