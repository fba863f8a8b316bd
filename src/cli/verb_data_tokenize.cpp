// `deltatune data tokenize`: ids of a text, of each line of standard input, or of rows of a dataset.
//
// Text is tokenised as it is, without a template: control-token strings in it stay text unless --special.
// A line gives a line: ids between blanks, or {"input_ids": [...]} with --json. What cannot be tokenised
// gives
// {"error": ...} in its place; the other lines go on, and the exit code is 3.
#include <unistd.h>

#include <cstdio>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/dataset_rows.h"
#include "cli/input_text.h"
#include "cli/verbs.h"
#include "train/text_source.h"

namespace deltatune::cli {
namespace {

constexpr size_t longest_line = size_t{256} << 20;

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string bytes_of_hex(std::string_view hex, const std::string& where) {
  if (hex.ends_with('\r')) hex.remove_suffix(1);
  std::string out;
  for (size_t i = 0; i + 1 < hex.size() && digit(hex[i]) >= 0 && digit(hex[i + 1]) >= 0; i += 2)
    out += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  if (2 * out.size() == hex.size()) return out;
  throw Error(ErrorKind::data, "not pairs of hexadecimal digits",
              format("{}, character {}", where, 2 * out.size()),
              "write each byte as two digits, without blanks: 48656c6c6f is Hello");
}

void print_ids(const std::vector<int32_t>& ids) {
  std::string line;
  for (const int32_t id : ids) line += format("{}{}", line.empty() ? "" : " ", id);
  std::printf("%s\n", line.c_str());
}

class LineTokenizer {
 public:
  explicit LineTokenizer(const Config& config)
      : config_(config),
        tokenizer_(open_tokenizer(config)),
        parse_added_(config.special || config.parse_special_in_content) {}

  void line(const std::string& text, const std::string& where) {
    try {
      print(tokenizer_.encode(config_.hex ? bytes_of_hex(text, where) : text, parse_added_));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      failed_ = true;
      print_json(error_json(error.where().find(where) == std::string::npos ? error.within(where) : error));
    }
  }
  int exit_code() const { return failed_ ? deltatune::exit_code(ErrorKind::data) : 0; }

 private:
  void print(const std::vector<int32_t>& ids) const {
    if (config_.json) {
      print_json(json::Object{{"input_ids", json::Array(ids.begin(), ids.end())}});
      return;
    }
    print_ids(ids);
  }

  const Config& config_;
  Tokenizer tokenizer_;
  bool parse_added_;
  bool failed_ = false;
};

void tokenize_rows(const Config& config) {
  TextSource text = open_text(config);
  text.control_tokens_in_content = text.control_tokens_in_content || config.special;
  SchemaNotices notices;
  visit_wanted_rows(config, [&](const DatasetRow& row) {
    const MarkedTokens tokens = tokens_of_row(row, config, text, notices);
    if (config.json) {
      print_json(tokens_json(row, tokens, text));
      return;
    }
    print_ids(tokens.ids);
  });
}

}  // namespace

int verb_data_tokenize(const Invocation& call) {
  const Config& config = call.config();
  const bool has_text = call.loaded.origins.contains("text");
  if (!has_text && !config.dataset.empty()) {
    if (config.hex) {
      throw Error(ErrorKind::usage, "--hex is about text, and there is a dataset", "command line",
                  "give the bytes with --text, or - and lines on standard input");
    }
    tokenize_rows(config);
    return 0;
  }
  if (!has_text && ::isatty(0) != 0) {
    throw Error(ErrorKind::usage, "there is nothing to tokenize", "dataset, --text",
                "give --text TEXT, name a dataset, or pass lines of text on standard input");
  }
  LineTokenizer tokenizer(config);
  if (has_text && config.text != "-") {
    tokenizer.line(config.text, "--text");
  } else {
    visit_input_lines(longest_line, [&](const std::string& line, int64_t number) {
      tokenizer.line(line, format("{}, line {}", input_name("-"), number));
    });
  }
  return tokenizer.exit_code();
}

}  // namespace deltatune::cli
