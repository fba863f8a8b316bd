// The data of a run: tokenizer, chat template, and the datasets as tokens.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_stream.h"
#include "data/encode.h"
#include "train/config.h"
#include "train/model_source.h"

namespace deltatune {

/// Tokenizer and template of a model. Either may be missing: rows that are tokenised already need neither.
struct TextTools {
  fs::path folder;  ///< where the tokenizer came from
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
  RenderOptions render;

  /// Turns conversations into tokens; empty without a tokenizer. Refers to this object.
  EncodeConversation encoder(bool control_tokens_in_content) const;
  int32_t pad_id() const;
  /// Tokens that end an answer: the tokenizer's eos and those of generation_config.json and config.json.
  std::vector<int32_t> stop_ids(const ModelSource& source) const;
};

/// Loads what `tokenizer_name_or_path` (default: the model folder) and `chat_template` name. Throws
/// Error{data} for files that are there and malformed, Error{model} when the tokenizer has ids that the
/// embedding lacks. `required`: a missing tokenizer or template is an error too.
TextTools load_text_tools(const Config&, const ModelSource&, bool required);

/// The set of `entries` (files, folders, globs) under the run's rules of length and bad rows.
TokenizedSet load_set(const std::vector<std::string>& entries, const Config&, const ModelSource&,
                      const TextTools&);

StreamOptions stream_options(const Config&, const TextTools&);

/// S_max of the run: max_documents, or the engine's default for max_tokens.
int64_t max_documents(const Config&);

}  // namespace deltatune
