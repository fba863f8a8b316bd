// Finding rows, and the two ways from a row to what a verb prints.
#include "cli/dataset_rows.h"

#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "base/format.h"
#include "data/files.h"
#include "data/row_source.h"
#include "data/tokenized_row.h"
#include "train/run_data.h"

namespace deltatune::cli {
namespace {

DatasetRow row_of(const RawRow& raw, const std::string& file, int64_t index) {
  DatasetRow row;
  row.file = file;
  row.line = raw.number;
  row.at = place_of(file, raw);
  row.index = index;
  try {
    row.value = raw.parse();
  } catch (const Error& error) {
    row.problem = error.within(row.place());
  }
  return row;
}

// Runs `make`; its errors get the place of the row.
template <class F>
auto at_row(const DatasetRow& row, F&& make) {
  if (row.problem) throw Error(*row.problem);
  try {
    return make();
  } catch (const Error& error) {
    throw error.within(row.place());
  }
}

}  // namespace

std::string DatasetRow::place() const {
  return format("row {} ({})", index, at);
}

json::Value DatasetRow::to_json() const {
  json::Value out;
  out.set("row", index);
  out.set("file", file);
  out.set("line", line);
  return out;
}

void visit_wanted_rows(const Config& config, const std::function<void(const DatasetRow&)>& visit) {
  const bool one = config.row >= 0;
  const int64_t begin = one ? config.row : 0;
  const int64_t end = one ? config.row + 1 : config.rows;
  int64_t index = 0;
  for (const fs::path& path : dataset_files(config.dataset, config.dataset_train_split)) {
    if (index >= end) break;
    visit_file(path, [&](const std::vector<RawRow>& block) {
      const auto count = static_cast<int64_t>(block.size());
      for (int64_t i = std::max<int64_t>(begin - index, 0); i < std::min(count, end - index); ++i)
        visit(row_of(block[static_cast<size_t>(i)], path.string(), index + i));
      index += count;
      return index < end;
    });
  }
  if (one && index <= begin) {
    throw Error(ErrorKind::usage, format("row {} does not exist", begin),
                format("the dataset has {} rows", index), "rows are numbered from 0");
  }
}

Conversation conversation_of_row(const DatasetRow& row, const Config& config, SchemaNotices& notices) {
  const SchemaOptions schema = schema_options(config.dataset_schema, config.messages_field);
  return at_row(row, [&] {
    SchemaNote note;
    Conversation result = read_conversation(row.value, schema, &note);
    notices.see(row.file, note);
    result.file = row.file;
    result.line = row.line;
    return result;
  });
}

MarkedTokens tokens_of_row(const DatasetRow& row, const Config& config, const TextSource& text,
                           SchemaNotices& notices) {
  const bool tokenised = at_row(row, [&] { return is_tokenized_row(row.value); });
  if (tokenised) return at_row(row, [&] { return tokens_of(row.value, vocab_size_of(config, text)); });
  if (text.tokenizer == nullptr) {
    throw Error(ErrorKind::data, "a chat row, but the model folder has no tokenizer.json", row.place(),
                "set tokenizer_name_or_path");
  }
  const Conversation chat = conversation_of_row(row, config, notices);
  return at_row(row, [&] { return text.encoder()(chat); });
}

json::Value tokens_json(const DatasetRow& row, const MarkedTokens& tokens, const TextSource& text) {
  json::Array ids, labels, pieces;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    ids.emplace_back(int64_t{tokens.ids[i]});
    labels.emplace_back(int64_t{is_target(tokens, i) ? tokens.ids[i] : ignored_label});
    if (text.tokenizer != nullptr)
      pieces.emplace_back(text.tokenizer->decode_utf8(std::span(&tokens.ids[i], 1)));
  }
  json::Value value = row.to_json();
  value.set("input_ids", std::move(ids));
  value.set("labels", std::move(labels));
  if (text.tokenizer != nullptr) value.set("pieces", std::move(pieces));
  return value;
}

json::Value error_json(const Error& error) {
  json::Value out;
  out.set("error", error.what());
  if (!error.where().empty()) out.set("where", error.where());
  if (!error.fix().empty()) out.set("fix", error.fix());
  return out;
}

void print_json(const json::Value& value) {
  std::printf("%s\n", json::dump(value).c_str());
}

}  // namespace deltatune::cli
