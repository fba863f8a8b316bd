// `deltatune data show | stats | render | tokenize`: rows as the model will see them.
//
// show prints the rendered conversation with supervised tokens marked: coloured on a terminal, between
// guillemets elsewhere. Control characters inside messages are printed as \xNN, so that a row cannot steer
// the terminal.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/verbs.h"
#include "data/files.h"
#include "data/row_source.h"
#include "data/schema.h"
#include "data/stats.h"
#include "data/tokenized_row.h"
#include "train/run_data.h"
#include "train/run_stream.h"

namespace deltatune::cli {
namespace {

struct Row {
  json::Value value;
  std::string file;
  int64_t line = 0;
  int64_t index = 0;
  std::string place() const { return format("row {} ({}, line {})", index, file, line); }
};

// The row named by --row, else the first --rows.
std::vector<Row> wanted_rows(const Config& config) {
  const std::vector<fs::path> files = dataset_files(config.dataset, config.dataset_train_split);
  std::vector<Row> rows;
  if (config.row >= 0) {
    Row& row = rows.emplace_back();
    row.index = config.row;
    row.value = read_row(files, config.row, row.file, row.line);
    return rows;
  }
  for (const fs::path& path : files) {
    visit_file(path, [&](const std::vector<RawRow>& block) {
      for (const RawRow& raw : block) {
        if (static_cast<int64_t>(rows.size()) >= config.rows) return false;
        rows.push_back({raw.parse(), path.string(), raw.number, static_cast<int64_t>(rows.size())});
      }
      return static_cast<int64_t>(rows.size()) < config.rows;
    });
    if (static_cast<int64_t>(rows.size()) >= config.rows) break;
  }
  return rows;
}

Conversation conversation(const Row& row, const Config& config, SchemaNotices& notices) {
  const SchemaOptions schema = schema_options(config.dataset_schema, config.messages_field);
  try {
    SchemaNote note;
    Conversation result = read_conversation(row.value, schema, &note);
    notices.see(row.file, note);
    result.file = row.file;
    result.line = row.line;
    return result;
  } catch (const Error& error) {
    throw error.within(row.place());
  }
}

MarkedTokens encode(const Row& row, const Config& config, const TextSource& text, SchemaNotices& notices) {
  try {
    if (is_tokenized_row(row.value)) return tokens_of(row.value, vocab_size_of(config, text));
  } catch (const Error& error) {
    throw error.within(row.place());
  }
  if (text.tokenizer == nullptr) {
    throw Error(ErrorKind::data, "a chat row, but the model folder has no tokenizer.json", row.place(),
                "set tokenizer_name_or_path");
  }
  const Conversation chat = conversation(row, config, notices);
  try {
    return text.encoder()(chat);
  } catch (const Error& error) {
    throw error.within(row.place());
  }
}

// Text safe for a terminal.
std::string printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1_control =
        c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      out += format("\\x{:02x}", c);
    } else if (c1_control) {
      out += format("\\u00{:02x}", static_cast<unsigned char>(text[++i]));
    } else {
      out += text[i];
    }
  }
  return out;
}

bool colour_on_stdout() {
  const char* none = std::getenv("NO_COLOR");
  const char* force = std::getenv("CLICOLOR_FORCE");
  if (none != nullptr && *none != '\0') return false;
  if (force != nullptr && *force != '\0' && std::string_view(force) != "0") return true;
  return ::isatty(1) != 0;
}

// A token counts from the second on: nothing predicts the first.
bool is_target(const MarkedTokens& tokens, size_t i) {
  return i > 0 && tokens.supervised[i] != 0;
}

std::string text_of(const MarkedTokens& tokens, size_t begin, size_t end, const TextSource& text) {
  const std::span<const int32_t> ids(tokens.ids.data() + begin, end - begin);
  if (text.tokenizer != nullptr) return printable(text.tokenizer->decode_utf8(ids));
  std::string out;
  for (const int32_t id : ids) out += format("{} ", id);
  return out;
}

void show_row(const Row& row, const Config& config, const TextSource& text, SchemaNotices& notices) {
  const MarkedTokens tokens = encode(row, config, text, notices);
  const bool colour = colour_on_stdout();
  const char* open = colour ? "\x1b[1;32m" : "\u00ab";
  const char* close = colour ? "\x1b[0m" : "\u00bb";
  size_t targets = 0;
  for (size_t i = 0; i < tokens.ids.size(); ++i) targets += is_target(tokens, i) ? 1 : 0;
  std::printf("--- %s: %zu tokens, %zu of them trained (%s)\n", row.place().c_str(), tokens.ids.size(),
              targets, colour ? "coloured" : "between \u00ab and \u00bb");
  const auto limit = static_cast<size_t>(config.max_length);
  for (size_t i = 0; i < tokens.ids.size();) {
    if (i == limit)
      std::printf("\n--- max_length %zu ends here (overflow: %s)\n", limit, config.overflow.c_str());
    size_t end = i + 1;
    while (end < tokens.ids.size() && end != limit && is_target(tokens, end) == is_target(tokens, i)) ++end;
    const std::string piece = text_of(tokens, i, end, text);
    const bool trained = is_target(tokens, i);
    std::printf("%s%s%s", trained ? open : "", piece.c_str(), trained ? close : "");
    i = end;
  }
  std::printf("\n");
}

json::Value row_json(const Row& row) {
  json::Value value;
  value.set("row", row.index);
  value.set("file", row.file);
  value.set("line", row.line);
  return value;
}

// {"row", "file", "line", "input_ids", "labels", "pieces"}: labels as Hugging Face's collators write them.
json::Value tokens_json(const Row& row, const MarkedTokens& tokens, const TextSource& text) {
  json::Array ids, labels, pieces;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    ids.emplace_back(int64_t{tokens.ids[i]});
    labels.emplace_back(int64_t{is_target(tokens, i) ? tokens.ids[i] : ignored_label});
    if (text.tokenizer != nullptr)
      pieces.emplace_back(text.tokenizer->decode_utf8(std::span(&tokens.ids[i], 1)));
  }
  json::Value value = row_json(row);
  value.set("input_ids", std::move(ids));
  value.set("labels", std::move(labels));
  if (text.tokenizer != nullptr) value.set("pieces", std::move(pieces));
  return value;
}

void print_json(const json::Value& value) {
  std::printf("%s\n", json::dump(value).c_str());
}

// Byte offsets of the assistant turns, for programs that make masks of their own.
json::Value turns_json(const RenderedChat& chat) {
  json::Array turns;
  for (const RenderedChat::Turn& turn : chat.turns) {
    json::Value value(json::Object{});
    value.set("message", int64_t{turn.message});
    const auto set = [&](const char* key, size_t offset) { value.set(key, static_cast<int64_t>(offset)); };
    set("header_end", turn.header_end);
    set("gen_prompt_end", turn.gen_prompt_end);
    set("answer_start", turn.answer_start);
    set("im_end_end", turn.im_end_end);
    set("turn_end", turn.turn_end);
    turns.push_back(std::move(value));
  }
  return json::Value(std::move(turns));
}

}  // namespace

int verb_data_show(const Invocation& call) {
  const Config& config = call.config();
  const TextSource text = open_text(config);
  SchemaNotices notices;
  for (const Row& row : wanted_rows(config)) {
    if (config.json) {
      print_json(tokens_json(row, encode(row, config, text, notices), text));
    } else {
      show_row(row, config, text, notices);
    }
  }
  return 0;
}

int verb_data_stats(const Invocation& call) {
  const Config& config = call.config();
  const TextSource text = open_text(config);
  const TokenizedSet set =
      load_set(config.dataset, config.dataset_train_split, config, vocab_size_of(config, text), text);
  StreamOptions rows = stream_options(config, text.pad_id());
  const TokenizedSet trained = training_part(config, set);
  rows.mixture = mixture_of(config, trained);
  const DataStats stats =
      data_stats(set, trained, rows, std::min(config.max_length, config.max_tokens), config.num_train_epochs);
  if (config.json) {
    std::printf("%s\n", json::dump(stats.to_json(), 2).c_str());
  } else {
    for (const std::string& line : stats.to_lines()) std::printf("%s\n", line.c_str());
  }
  return 0;
}

int verb_data_render(const Invocation& call) {
  const Config& config = call.config();
  const ChatTemplate chat_template = open_template(config);
  const RenderOptions options = render_options(config);
  SchemaNotices notices;
  for (const Row& row : wanted_rows(config)) {
    const RenderedChat chat = [&] {
      const Conversation parsed = conversation(row, config, notices);
      try {
        return render_conversation(parsed, chat_template, options);
      } catch (const Error& error) {
        throw error.within(row.place());
      }
    }();
    if (!config.json) {
      std::fwrite(chat.marked.text.data(), 1, chat.marked.text.size(), stdout);
      if (!chat.marked.text.ends_with('\n')) std::printf("\n");
      continue;
    }
    json::Array spans;
    for (const RenderedChat::Span& span : chat.spans) {
      spans.emplace_back(json::Array{json::Value(static_cast<int64_t>(span.begin)),
                                     json::Value(static_cast<int64_t>(span.end))});
    }
    json::Value value = row_json(row);
    value.set("text", chat.marked.text);
    value.set("trained_bytes", std::move(spans));
    if (!chat.turns.empty()) value.set("assistant_spans", turns_json(chat));
    print_json(value);
  }
  return 0;
}

int verb_data_tokenize(const Invocation& call) {
  const Config& config = call.config();
  const TextSource text = open_text(config);
  if (text.tokenizer == nullptr) {
    throw Error(ErrorKind::usage, "there is no tokenizer.json in the model folder", config.model_name_or_path,
                "set tokenizer_name_or_path");
  }
  const auto print_ids = [&](const std::vector<int32_t>& ids) {
    std::string line;
    for (const int32_t id : ids) line += format("{}{}", line.empty() ? "" : " ", id);
    std::printf("%s\n", line.c_str());
  };
  if (!config.text.empty()) {
    const std::vector<int32_t> ids = text.tokenizer->encode(config.text, config.parse_special_in_content);
    if (!config.json) {
      print_ids(ids);
      return 0;
    }
    json::Value value;
    value.set("input_ids", json::Array(ids.begin(), ids.end()));
    print_json(value);
    return 0;
  }
  SchemaNotices notices;
  for (const Row& row : wanted_rows(config)) {
    const MarkedTokens tokens = encode(row, config, text, notices);
    if (config.json) {
      print_json(tokens_json(row, tokens, text));
    } else {
      print_ids(tokens.ids);
    }
  }
  return 0;
}

}  // namespace deltatune::cli
