// Model FLOPs: what training on these documents costs at least, whatever this program does.
//
// A forward pass counts its large products, two FLOPs a multiplication: every weight matrix of a block on
// every token of a document, the head on supervised tokens (no other logits are needed), causal attention on
// the pairs of tokens that see each other inside a document, and the gated delta rule on chunks of at most 64
// tokens of a document. Each product has two in backward, so a step counts three forward passes. Filler,
// activations computed again (by layers or inside of a kernel) and element-wise work count nothing: this is
// the numerator of MFU. Sources: PaLM (Chowdhery et al. 2022, appendix B) for the convention,
// Yang et al. 2024, section 3.3, for the chunked delta rule.
#pragma once

#include <cstdint>

#include "data/batch.h"
#include "model/config.h"

namespace deltatune {

/// What the FLOPs of a row depend on. Sums: of rows, of ranks.
struct RowWork {
  int64_t tokens = 0;         ///< of documents
  int64_t targets = 0;        ///< supervised ones
  int64_t pairs = 0;          ///< sum over documents of n (n + 1) / 2
  int64_t chunk_squares = 0;  ///< sum over chunks of n^2

  RowWork& operator+=(const RowWork& more) {
    tokens += more.tokens;
    targets += more.targets;
    pairs += more.pairs;
    chunk_squares += more.chunk_squares;
    return *this;
  }
};

RowWork row_work(const Batch& batch);

/// Entries of the weight matrices of all blocks: each is used once per token. Neither embedding, head, norms
/// nor the short convolution are among them.
int64_t block_matrix_entries(const ModelConfig& config);

/// FLOPs of forward and backward.
double model_flops(const ModelConfig& config, const RowWork& work);

}  // namespace deltatune
