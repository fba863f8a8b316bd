// `deltatune data show | stats`: rows as the model will see them, and numbers about all of them.
//
// show prints the rendered conversation with supervised tokens marked: coloured on a terminal, between
// guillemets elsewhere. Control characters inside messages are printed as \xNN, so that a row cannot steer
// the terminal.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/counted.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/dataset_rows.h"
#include "cli/verbs.h"
#include "data/stats.h"
#include "train/run_data.h"
#include "train/run_stream.h"

namespace deltatune::cli {
namespace {

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

std::string text_of(const MarkedTokens& tokens, size_t begin, size_t end, const TextSource& text) {
  const std::span<const int32_t> ids(tokens.ids.data() + begin, end - begin);
  if (text.tokenizer != nullptr) return printable(text.tokenizer->decode_utf8(ids));
  std::string out;
  for (const int32_t id : ids) out += format("{} ", id);
  return out;
}

void show_row(const DatasetRow& row, const Config& config, const TextSource& text, SchemaNotices& notices) {
  const MarkedTokens tokens = tokens_of_row(row, config, text, notices);
  const bool colour = colour_on_stdout();
  const char* open = colour ? "\x1b[1;32m" : "\u00ab";
  const char* close = colour ? "\x1b[0m" : "\u00bb";
  size_t targets = 0;
  for (size_t i = 0; i < tokens.ids.size(); ++i) targets += is_target(tokens, i) ? 1 : 0;
  std::printf("--- %s: %s, %zu of them trained (%s)\n", row.place().c_str(),
              counted(static_cast<int64_t>(tokens.ids.size()), "token").c_str(), targets,
              colour ? "coloured" : "between \u00ab and \u00bb");
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

}  // namespace

int verb_data_show(const Invocation& call) {
  const Config& config = call.config();
  const TextSource text = open_text(config);
  SchemaNotices notices;
  visit_wanted_rows(config, [&](const DatasetRow& row) {
    if (config.json) {
      print_json(tokens_json(row, tokens_of_row(row, config, text, notices), text));
    } else {
      show_row(row, config, text, notices);
    }
  });
  return 0;
}

int verb_data_stats(const Invocation& call) {
  const Config& config = call.config();
  check_mixture_keys(config);
  const TextSource text = open_text(config);
  const TokenizedSet set =
      load_set(config.dataset, config.dataset_train_split, config, vocab_size_of(config, text), text);
  StreamOptions rows = stream_options(config, text.pad_id());
  const TokenizedSet trained = training_part(config, set);
  rows.mixture = mixture_of(config, trained);
  DataStats stats =
      data_stats(set, trained, rows, std::min(config.max_length, config.max_tokens), config.num_train_epochs);
  if (text.chat_template != nullptr) stats.chat_template = text.chat_template->where();
  if (config.json) {
    std::printf("%s\n", json::dump(stats.to_json(), 2).c_str());
  } else {
    for (const std::string& line : stats.to_lines()) std::printf("%s\n", line.c_str());
  }
  return 0;
}

}  // namespace deltatune::cli
