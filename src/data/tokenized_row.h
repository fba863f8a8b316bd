// Rows that are tokenised already: {"input_ids": [...], "labels": [...]}, the form of Hugging Face's
// collators: labels are not shifted, so labels[t] is the label of token t, and -100 is "not supervised".
//
// A label is -100 or the token itself; anything else is refused, because it is nearly always a shifted list.
// An attention_mask may be there if it is all ones; padding is refused. Other members are not looked at.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "data/rows.h"
#include "text/marked_text.h"

namespace deltatune {

/// The label of a token that is not a target (torch's cross_entropy ignore_index).
inline constexpr int32_t ignored_label = -100;

/// True when the row has a member input_ids that is not null.
bool is_tokenized_row(const json::Value& row);

/// Reads one row; ids must lie in [0, vocab_size). An empty row gives empty vectors. Throws RowError{labels}.
MarkedTokens tokens_of(const json::Value& row, int64_t vocab_size);

}  // namespace deltatune
