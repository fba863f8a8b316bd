// The data of a run: datasets as tokens and as batches, under the rules that the configuration sets. `train`,
// `eval` and `data show|stats` share these, so that what is shown is what is trained.
#pragma once

#include <string>
#include <vector>

#include "data/batch_stream.h"
#include "train/config.h"
#include "train/model_source.h"
#include "train/text_source.h"

namespace deltatune {

/// open_text(), checked against the model: Error{model} when the tokenizer has ids that the embedding lacks.
TextSource open_run_text(const Config&, const ModelSource&, bool required);

/// Tokens that end an answer: the tokenizer's eos and those of generation_config.json and config.json.
std::vector<int32_t> stop_ids(const TextSource&, const ModelSource&);

/// max_length is limited to max_tokens, with a line that says so. The split is that of training.
DatasetOptions dataset_options(const Config&, int64_t vocab_size);

/// The set of `entries` (files, folders, globs) under the run's rules of length and bad rows; `split` chooses
/// the files of folders. It comes from the token cache where dataset_cache allows and the cache has it.
TokenizedSet load_set(const std::vector<std::string>& entries, const std::string& split, const Config&,
                      int64_t vocab_size, const TextSource&);
TokenizedSet load_set(const std::vector<std::string>& entries, const std::string& split, const Config&,
                      const ModelSource&, const TextSource&);

/// Where the tokens of a dataset are kept. Nowhere for dataset_cache: off, and for a template that prints the
/// time.
CacheOptions cache_options(const Config&, const TextSource&);

/// skipped_rows.jsonl in `folder`, {"file", "line", "problem", "what", "where", "fix"} for each row that
/// on_bad_row: skip left out; one of an earlier run is removed where there are none. Throws Error{resource}.
void write_skipped_rows(const TokenizedSet& set, const fs::path& folder);

/// The set without what val_size holds out for evaluation: what is trained on.
TokenizedSet training_part(const Config&, const TokenizedSet&);

/// Of the rank that the configuration says this process is.
StreamOptions stream_options(const Config&, int32_t pad_id);

/// S_max, the most segments of a row: max_documents and the filler, or the engine's default for max_tokens.
int64_t max_segments(const Config&);
/// The configuration with max_documents lowered to what rows of at most `segments` segments need: the chunk
/// table and the states of the delta rule are as large as the most documents that a row may have.
Config with_segments(const Config&, int64_t segments);

}  // namespace deltatune
