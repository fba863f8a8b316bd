// `deltatune data check`: every bad row of a dataset, and what else looks wrong. Exit code 3 when a row or a
// file cannot be used.
#include <cstdio>
#include <map>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/verbs.h"
#include "data/check.h"
#include "data/files.h"
#include "train/run_data.h"

namespace deltatune::cli {
namespace {

constexpr int64_t shown_notes = 10;  // of a kind, without --verbose

// Special tokens, which only the template may write; those of chat templates where no tokenizer is named.
std::vector<std::string> control_tokens(const TextSource& text) {
  if (text.tokenizer == nullptr) return {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
  std::vector<std::string> out;
  for (int64_t id = 0; id < text.tokenizer->vocab_size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    if (text.tokenizer->is_added(token) && text.tokenizer->is_special(token))
      out.push_back(text.tokenizer->token_text(token));
  }
  return out;
}

class Printer {
 public:
  explicit Printer(const Config& config) : json_(config.json), all_notes_(config.verbose) {}

  void finding(const Finding& finding) {
    if (json_) {
      print(json::dump(finding.to_json()));
      return;
    }
    if (!finding.bad && !all_notes_) {
      const int64_t count = ++notes_[finding.problem];
      if (count == shown_notes + 1)
        print(format("note  further rows of this kind are only counted ({}); --verbose shows them",
                     finding.problem));
      if (count > shown_notes) return;
    }
    print(format("{}  {}: {}", finding.bad ? "bad " : "note", finding.place, finding.what));
    if (finding.bad && !finding.fix.empty()) print("      fix: " + finding.fix);
  }

  void summary(const CheckSummary& summary) {
    if (json_) {
      print(json::dump(json::Object{{"summary", summary.to_json()}}));
      return;
    }
    for (const std::string& line : summary.to_lines()) print(line);
  }

 private:
  static void print(const std::string& line) { std::printf("%s\n", line.c_str()); }

  bool json_;
  bool all_notes_;
  std::map<std::string, int64_t> notes_;
};

}  // namespace

int verb_data_check(const Invocation& call) {
  const Config& config = call.config();
  const bool has_model = !config.model_name_or_path.empty() || !config.tokenizer_name_or_path.empty();
  const TextSource text = has_model ? open_text(config) : TextSource();
  CheckOptions options;
  options.rows = dataset_options(config, vocab_size_of(config, text));
  options.control_tokens = control_tokens(text);
  const std::vector<fs::path> files = dataset_files(config.dataset, config.dataset_train_split);
  // A line at a time: findings and the progress lines of standard error may share a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, size_t{1} << 16);
  Printer printer(config);
  const CheckSummary summary = check_dataset(files, options, text.encoder(),
                                             [&](const Finding& finding) { printer.finding(finding); });
  printer.summary(summary);
  return summary.clean() ? 0 : exit_code(ErrorKind::data);
}

}  // namespace deltatune::cli
