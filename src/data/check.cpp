// Going through all rows, and the words for what is found.
#include "data/check.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "data/dataset_cache.h"
#include "data/progress.h"
#include "data/row_source.h"
#include "data/stats.h"

namespace deltatune {
namespace {

struct HashOfHash {
  size_t operator()(const Hash128& hash) const { return static_cast<size_t>(hash[1]); }
};

// Where a row was seen first.
struct FirstRow {
  int64_t file = 0;
  int64_t number = 0;   // of the line or row
  bool is_row = false;  // of columns or an array, not a line
};

struct NoteFix {
  const char* name;
  const char* fix;
};
constexpr NoteFix note_fixes[] = {
    {"duplicate", "remove one of them, unless it is meant to count twice"},
    {"empty_assistant_turn", "add the answer, or remove the turn: it trains the model to say nothing"},
    {"no_target", "such a row trains nothing: check train_on, or remove it"},
    {"empty", "remove it"},
    {"too_long", "raise max_length, or choose overflow: truncate, drop or split"},
    {"control_token",
     "it is trained as plain text, unless parse_special_in_content is set; remove it if a "
     "template was applied to the data before"},
};

const char* fix_of(std::string_view note) {
  for (const NoteFix& entry : note_fixes) {
    if (note == entry.name) return entry.fix;
  }
  return "";
}

// The first control token in a text, or nullptr.
const std::string* control_token_in(std::string_view text, const std::vector<std::string>& tokens) {
  for (const std::string& token : tokens) {
    if (text.find(token) != std::string_view::npos) return &token;
  }
  return nullptr;
}

struct Leak {
  size_t message = 0;
  std::string role;
  std::string token;
};

std::optional<Leak> leak_in(const Conversation& conversation, const std::vector<std::string>& tokens) {
  const json::Array& messages = conversation.messages.as_array();
  for (size_t i = 0; i < messages.size(); ++i) {
    for (const char* key : {"content", "reasoning_content"}) {
      const json::Value* text = messages[i].find(key);
      if (text == nullptr || !text->is_string()) continue;
      if (const std::string* token = control_token_in(text->as_string(), tokens))
        return Leak{i, messages[i].at("role").as_string(), *token};
    }
  }
  return std::nullopt;
}

// Stands for the tokens where there is no tokenizer: equal conversations are equal. Ids are valid in any
// vocabulary.
MarkedTokens stand_in(const Conversation& conversation, int64_t vocab_size) {
  const Hash128 hash =
      Hasher().update(json::dump(conversation.messages)).update(json::dump(conversation.tools)).digest();
  MarkedTokens out;
  for (const uint64_t half : hash) {
    for (int shift = 0; shift < 64; shift += 4) {
      const auto digit = static_cast<int64_t>(half >> shift & 15);
      out.ids.push_back(static_cast<int32_t>(digit % vocab_size));
    }
  }
  out.supervised.assign(out.ids.size(), 1);
  return out;
}

class Checker {
 public:
  Checker(const CheckOptions& options, const EncodeConversation& encode,
          const std::function<void(const Finding&)>& report)
      : options_(options),
        encode_(encode),
        report_(report),
        rows_(options.rows),
        progress_("checking", options.progress_after_s) {
    summary_.tokenised = static_cast<bool>(encode);
  }

  void expect_bytes(int64_t bytes) { progress_.expect_bytes(bytes); }

  void file(const fs::path& path) {
    ++summary_.files;
    file_ = path.string();
    names_.push_back(file_);
    try {
      visit_file(path, [&](const std::vector<RawRow>& rows) {
        block(rows);
        return true;
      });
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      ++summary_.unreadable_files;
      Finding finding;
      finding.bad = true;
      finding.problem = "unreadable";
      finding.file = file_;
      finding.place = error.where().empty() ? file_ : error.where();
      finding.what = error.what();
      finding.where = error.where();
      finding.fix = error.fix();
      give(finding);
    }
    progress_.file_done(path);
  }

  CheckSummary finish() && { return std::move(summary_); }

 private:
  struct Checked {
    EncodedRow row;
    std::optional<Leak> leak;
  };

  Checked check(const RawRow& row) const {
    Checked out;
    out.row = encode_row(row, file_, rows_, [&](const Conversation& conversation) {
      out.leak = leak_in(conversation, options_.control_tokens);
      return encode_ ? encode_(conversation) : stand_in(conversation, rows_.vocab_size);
    });
    return out;
  }

  void block(const std::vector<RawRow>& rows) {
    std::vector<Checked> checked(rows.size());
    parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        checked[static_cast<size_t>(i)] = check(rows[static_cast<size_t>(i)]);
      }
    });
    for (size_t i = 0; i < rows.size(); ++i) {
      take(rows[i], checked[i]);
      ++summary_.rows;
    }
    progress_.show(summary_.rows, summary_.tokenised ? summary_.counts.tokens : 0, rows);
  }

  void take(const RawRow& raw, const Checked& checked) {
    if (checked.row.problem) {
      const RowError& error = *checked.row.problem;
      ++summary_.bad_rows;
      Finding finding = at(raw);
      finding.bad = true;
      finding.problem = name_of(error.problem());
      finding.what = error.what();
      finding.where = error.where();
      finding.fix = error.fix();
      if (!finding.where.empty()) finding.place += ", " + finding.where;
      give(finding);
      return;
    }
    if (checked.row.empty_assistant_turns > 0) {
      note(raw, "empty_assistant_turn",
           format("{} assistant turns without text", checked.row.empty_assistant_turns));
    }
    if (checked.leak) {
      note(raw, "control_token",
           format("{} is typed in message {} ({})", json::quote(checked.leak->token), checked.leak->message,
                  checked.leak->role));
    }
    if (!checked.row.tokens.ids.empty()) see_duplicate(raw, checked.row.hash);
    lengths(raw, checked.row);
    summary_.counts.empty_assistant_turns += checked.row.empty_assistant_turns;
    for (size_t r = 0; r < role_count; ++r) summary_.counts.messages[r] += checked.row.messages[r];
  }

  void see_duplicate(const RawRow& raw, const Hash128& hash) {
    const FirstRow here{summary_.files - 1, raw.number, raw.batch != nullptr || raw.value != nullptr};
    const auto [first, is_new] = first_rows_.emplace(hash, here);
    if (is_new) return;
    ++summary_.counts.duplicates;
    const FirstRow& equal = first->second;
    const std::string& file = names_[static_cast<size_t>(equal.file)];
    Finding finding = note_of(
        raw, "duplicate", format("equal to {}, {} {}", file, equal.is_row ? "row" : "line", equal.number));
    finding.equal_file = file;
    finding.equal_line = equal.number;
    give(finding);
  }

  void lengths(const RawRow& raw, const EncodedRow& row) {
    const bool real = summary_.tokenised || !row.note;
    if (!real) return;
    const DatasetCounts before = summary_.counts;
    static_cast<void>(pieces_of(row.tokens, rows_, summary_.counts));
    const DatasetCounts& now = summary_.counts;
    if (now.empty > before.empty) note(raw, "empty", "the row has no token");
    if (now.all_masked > before.all_masked) note(raw, "no_target", "the row has no supervised token");
    const auto length = static_cast<int64_t>(row.tokens.ids.size());
    if (length <= rows_.max_length || now.all_masked > before.all_masked) return;
    const char* result = now.truncated > before.truncated ? "its end is cut off"
                         : now.dropped > before.dropped   ? "it is left out"
                         : now.split > before.split       ? "it is cut into pieces"
                         : now.masked_by_overflow > before.masked_by_overflow
                             ? "no target is within, it is left out"
                             : "it is cut";
    note(raw, "too_long", format("{} tokens, max_length is {}: {}", length, rows_.max_length, result));
  }

  Finding at(const RawRow& raw) const {
    Finding finding;
    finding.row = summary_.rows;
    finding.file = file_;
    finding.line = raw.number;
    finding.place = place_of(file_, raw);
    return finding;
  }

  Finding note_of(const RawRow& raw, const char* problem, std::string what) const {
    Finding finding = at(raw);
    finding.problem = problem;
    finding.what = std::move(what);
    finding.fix = fix_of(problem);
    return finding;
  }

  void note(const RawRow& raw, const char* problem, std::string what) {
    give(note_of(raw, problem, std::move(what)));
  }

  void give(const Finding& finding) {
    ++(finding.bad ? summary_.bad : summary_.notes)[finding.problem];
    report_(finding);
  }

  const CheckOptions& options_;
  const EncodeConversation& encode_;
  const std::function<void(const Finding&)>& report_;
  RowOptions rows_;
  std::string file_;
  CheckSummary summary_;
  std::vector<std::string> names_;  // of the files so far
  std::unordered_map<Hash128, FirstRow, HashOfHash> first_rows_;
  RowProgress progress_;
};

json::Value counts_json(const std::map<std::string, int64_t>& counts) {
  json::Value out(json::Object{});
  for (const auto& [name, count] : counts) out.set(name, count);
  return out;
}

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

json::Value Finding::to_json() const {
  json::Value out(json::Object{{"bad", bad}, {"problem", problem}});
  out.set("row", row < 0 ? json::Value() : json::Value(row));
  out.set("file", file);
  out.set("line", line == 0 ? json::Value() : json::Value(line));
  out.set("what", what);
  out.set("where", where);
  out.set("fix", fix);
  if (equal_line > 0) out.set("equal_to", json::Object{{"file", equal_file}, {"line", equal_line}});
  return out;
}

json::Value CheckSummary::to_json() const {
  json::Value out(json::Object{{"files", files},
                               {"unreadable_files", unreadable_files},
                               {"rows", rows},
                               {"bad_rows", bad_rows},
                               {"bad", counts_json(bad)},
                               {"notes", counts_json(notes)},
                               {"duplicates", counts.duplicates},
                               {"empty_assistant_turns", counts.empty_assistant_turns},
                               {"messages", messages_json(counts)},
                               {"tokenised", tokenised}});
  if (!tokenised) return out;
  out.set("conversations", counts.conversations);
  out.set("tokens", counts.tokens);
  out.set("supervised_tokens", counts.targets);
  out.set("supervised_share", share(counts.targets, counts.tokens));
  out.set("tokens_cut", counts.tokens_cut);
  return out;
}

std::vector<std::string> CheckSummary::to_lines() const {
  std::vector<std::string> out;
  out.push_back(format("{:<24}{} in {}: {} bad", "rows", format_count(rows), counted(files, "file"),
                       format_count(bad_rows)));
  if (unreadable_files > 0) out.push_back(format("{:<24}{}", "unreadable files", unreadable_files));
  for (const auto& [name, count] : bad) {
    if (name != "unreadable") out.push_back(format("  bad   {:<16}{}", name, format_count(count)));
  }
  for (const auto& [name, count] : notes)
    out.push_back(format("  note  {:<22}{}", name, format_count(count)));
  if (tokenised) {
    out.push_back(format("{:<24}{}, {} supervised ({:.1f} %), {} cut off", "tokens",
                         format_count(counts.tokens), format_count(counts.targets),
                         100 * share(counts.targets, counts.tokens), format_count(counts.tokens_cut)));
  } else {
    out.push_back("rows were not rendered: name a model_name_or_path or tokenizer_name_or_path for that");
  }
  return out;
}

CheckSummary check_dataset(const std::vector<fs::path>& files, const CheckOptions& options,
                           const EncodeConversation& encode,
                           const std::function<void(const Finding&)>& report) {
  check_lengths(options.rows);
  Checker checker(options, encode, report);
  checker.expect_bytes(total_bytes(files));
  for (const fs::path& path : files) checker.file(path);
  return std::move(checker).finish();
}

}  // namespace deltatune
