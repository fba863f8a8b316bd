// The batches of a training run: from a tokenised set or tokenised on the fly, made ahead of the step by a
// thread.
#pragma once

#include <memory>
#include <vector>

#include "data/batch_stream.h"
#include "data/mixture.h"
#include "data/skipped_rows.h"
#include "train/config.h"
#include "train/model_source.h"
#include "train/text_source.h"

namespace deltatune {

struct RunStream {
  std::unique_ptr<RowStream> rows;
  int64_t max_segments = 0;  ///< most segments of a row, filler included
  int64_t total_steps = 0;   ///< of the run, exact
};

/// Throws Error{usage} before a row is parsed: dataset_weights that are no numbers from 1e-6 to 1000 or not
/// one for each entry of dataset; a val_size above 1 that is no whole number, or that leaves nothing of files
/// whose rows can be counted by their line ends. Says where val_size is not read because of eval_dataset.
void check_mixture_keys(const Config& config);

/// The same, and with streaming: true what needs to know the data before the first step (num_train_epochs
/// without max_steps, val_size, dataset_weights).
void check_data_keys(const Config& config);

/// dataset_weights for the conversations of `set`, which come from the entries of `dataset`; empty where all
/// weigh 1. Throws as check_data_keys().
std::vector<MixturePart> mixture_of(const Config& config, const TokenizedSet& set);

/// Batches of a set, which must outlive them. Says in the log how much there is, and of which dataset.
RunStream open_stream(const Config& config, const TokenizedSet& set, int32_t pad_id);

/// streaming: true. Text must outlive the batches. `skipped`, when there is one, lists the rows that
/// on_bad_row: skip leaves out.
RunStream open_streaming(const Config& config, const ModelSource& source, const TextSource& text,
                         std::shared_ptr<SkippedRowsFile> skipped = nullptr);

}  // namespace deltatune
