// The part of a chunk of the gated delta rule that doesn't depend on the state, as a kernel of its own:
// forward and backward both start from it.
//
// Per chunk of n <= 64 tokens and value head, with L_ij = beta_i (k_i . k_j) for i > j and 0 elsewhere,
//     T = (I + L)^-1, unit lower triangular,
// so that the tokens' corrections D of the delta rule are D = (Gam o T diag(beta)) (V - e^G o K S), with G
// the sum of g inside the chunk up to the token and Gam_ij = e^(G_i - G_j) for i >= j (Yang et al. 2024;
// decays leave the inverse, since (I + Gam o L)^-1 = Gam o T). For |k| <= 1 and 0 <= beta <= 1 every |T_ij|
// <= 1.
#pragma once

#include "cuda/device.h"
#include "ops/kernels.h"

namespace deltatune::cuda {

/// T: [C, Hv, 64, 64], bf16, C the entries of the chunk table: row i, column j of chunk and value head.
/// Written for chunks in use, zero where i or j is not a token of the chunk. k: [T, Hk, 128], bf16; beta: [T,
/// Hv], f32. Hv / Hk is 1, 2 or 3; other shapes are Error{internal}. Needs no scratch.
void gdn_inverse(Stream&, Tensor T_CHII, CTensor k_THK, CTensor beta_TH, const Segments&, GdnShape);

/// What forward wants besides T, in device memory; see gdn_prepare.
struct GdnPrepared {
  void* inverse;  ///< T as above
  void* scores;  ///< fp16 [C, Hk, 64, 64]: q_i . k_j, at most 1, for i >= j, else 0; 16 x 16 blocks above the
                 ///< diagonal unset. bf16 would round what Gam o Q K^T rounds once more
  float* gates;  ///< [C, Hv, 2, 64]: log2(e) G, constant behind the chunk's end; beta, 0 there
  int32_t*
      order;  ///< [S_max, 4], S_max the documents a row may have: first chunk, first token, length and 0 of
              ///< each document that has tokens, longest first; then their number and a counter, zeroed
};

/// gdn_inverse and the rest of GdnPrepared in one pass over k and q.
void gdn_prepare(Stream&, const GdnPrepared&, CTensor q_THK, CTensor k_THK, CTensor g_TH, CTensor beta_TH,
                 const Segments&, GdnShape);

}  // namespace deltatune::cuda
