// Checks lengths, ranges and labels of rows that carry token ids.
#include "data/tokenized_row.h"

#include <string>

#include "base/format.h"

namespace deltatune {
namespace {

using json::Array;
using json::Value;

const Array& list_of(const Value& row, const char* key) {
  const Value* list = row.find(key);
  if (!list || list->is_null()) {
    throw RowError(RowProblem::labels, format("the row has input_ids but no {}", key), "",
                   "add labels: the token itself where it is supervised, else -100");
  }
  if (!list->is_array()) {
    throw RowError(RowProblem::labels, format("{} is a JSON {}, not a list", key, list->type_name()), "",
                   "write it as a flat list of integers, one row per conversation");
  }
  return list->as_array();
}

int64_t integer_at(const Array& list, size_t i, const char* key) {
  if (list[i].is_integer()) return list[i].as_integer();
  throw RowError(RowProblem::labels, format("{} holds a JSON {}", key, list[i].type_name()),
                 format("{}[{}]", key, i), "write it as a flat list of integers, one row per conversation");
}

void check_attention_mask(const Value& row, size_t length) {
  const Value* mask = row.find("attention_mask");
  if (!mask || mask->is_null()) return;
  const Array& list = list_of(row, "attention_mask");
  bool ones = list.size() == length;
  for (size_t i = 0; ones && i < list.size(); ++i) ones = list[i].is_integer() && list[i].as_integer() == 1;
  if (!ones) {
    throw RowError(RowProblem::labels, "attention_mask is not all ones", "attention_mask",
                   "store rows without padding; they are packed here");
  }
}

[[noreturn]] void wrong_label(const Array& ids, size_t i, int64_t label, int64_t id) {
  const bool shifted = i + 1 < ids.size() && ids[i + 1].is_integer() && ids[i + 1].as_integer() == label;
  throw RowError(
      RowProblem::labels, format("label {} at a token with id {}", label, id), format("labels[{}]", i),
      shifted ? "labels look shifted by one: store them unshifted, labels[t] = input_ids[t] or -100"
              : "a label is the token itself or -100");
}

}  // namespace

bool is_tokenized_row(const json::Value& row) {
  const Value* ids = row.find("input_ids");
  return ids && !ids->is_null();
}

MarkedTokens tokens_of(const json::Value& row, int64_t vocab_size) {
  const Array& ids = list_of(row, "input_ids");
  const Array& labels = list_of(row, "labels");
  if (ids.size() != labels.size()) {
    throw RowError(RowProblem::labels, format("{} input_ids but {} labels", ids.size(), labels.size()), "",
                   "give every token one label");
  }
  check_attention_mask(row, ids.size());
  MarkedTokens out;
  out.ids.reserve(ids.size());
  out.supervised.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t id = integer_at(ids, i, "input_ids");
    const int64_t label = integer_at(labels, i, "labels");
    if (id < 0 || id >= vocab_size) {
      throw RowError(RowProblem::labels, format("token id {} is outside [0, {})", id, vocab_size),
                     format("input_ids[{}]", i), "tokenise the data with this model's tokenizer");
    }
    if (label != ignored_label && label != id) wrong_label(ids, i, label, id);
    out.ids.push_back(static_cast<int32_t>(id));
    out.supervised.push_back(label == ignored_label ? 0 : 1);
  }
  return out;
}

}  // namespace deltatune
