// The counts behind MFU.
#include "train/model_flops.h"

#include <algorithm>

#include "ops/segments.h"

namespace deltatune {

RowWork row_work(const Batch& batch) {
  RowWork work;
  work.targets = batch.num_targets;
  for (const int64_t n : batch.lengths) {
    work.tokens += n;
    work.pairs += n * (n + 1) / 2;
    const int64_t rest = n % gdn_chunk;
    work.chunk_squares += (n / gdn_chunk) * gdn_chunk * gdn_chunk + rest * rest;
  }
  return work;
}

int64_t block_matrix_entries(const ModelConfig& config) {
  const AttentionShape& attention = config.attention;
  const GdnShape& gdn = config.gdn;
  const int64_t of_attention = attention.columns() + attention.query_heads * attention.head_dim;
  const int64_t of_gdn = gdn.columns() + gdn.values();
  const int64_t attention_layers =
      std::count(config.full_attention.begin(), config.full_attention.end(), true);
  return config.hidden_size *
         (attention_layers * of_attention + (config.layers() - attention_layers) * of_gdn +
          config.layers() * 3 * config.intermediate_size);
}

double model_flops(const ModelConfig& config, const RowWork& work) {
  const auto attention_layers =
      static_cast<double>(std::count(config.full_attention.begin(), config.full_attention.end(), true));
  const double delta_layers = static_cast<double>(config.layers()) - attention_layers;
  const GdnShape& gdn = config.gdn;
  const double blocks =
      2 * static_cast<double>(block_matrix_entries(config)) * static_cast<double>(work.tokens);
  const double head =
      2 * static_cast<double>(config.hidden_size * config.vocab_size) * static_cast<double>(work.targets);
  // Scores and their product with v.
  const double attention = 4 * static_cast<double>(config.attention.query_heads * config.attention.head_dim) *
                           static_cast<double>(work.pairs);
  // Per chunk of n: K S, Q S and the new state of 2 n dk dv, K K^T and Q K^T of 2 n^2 dk, two of 2 n^2 dv.
  const double delta =
      static_cast<double>(gdn.value_heads) *
      (6 * static_cast<double>(gdn.key_dim * gdn.value_dim) * static_cast<double>(work.tokens) +
       4 * static_cast<double>(gdn.key_dim + gdn.value_dim) * static_cast<double>(work.chunk_squares));
  return 3 * (blocks + head + attention_layers * attention + delta_layers * delta);
}

}  // namespace deltatune
