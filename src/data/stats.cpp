// Computes and prints DataStats.
#include "data/stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

LengthStats length_stats(std::span<const int32_t> lengths) {
  LengthStats out;
  if (lengths.empty()) return out;
  std::vector<int32_t> sorted(lengths.begin(), lengths.end());
  std::sort(sorted.begin(), sorted.end());
  int64_t sum = 0;
  for (const int32_t length : sorted) sum += length;
  out.count = static_cast<int64_t>(sorted.size());
  out.min = sorted.front();
  out.p50 = percentile(sorted, 50);
  out.p90 = percentile(sorted, 90);
  out.p99 = percentile(sorted, 99);
  out.max = sorted.back();
  out.mean = static_cast<double>(sum) / static_cast<double>(out.count);
  return out;
}

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

json::Value skipped_json(const DatasetCounts& counts) {
  json::Value out(json::Object{});
  for (int i = 0; i < row_problem_count; ++i) {
    const int64_t count = counts.skipped[static_cast<size_t>(i)];
    if (count > 0) out.set(name_of(static_cast<RowProblem>(i)), count);
  }
  return out;
}

json::Value lengths_json(const LengthStats& lengths) {
  return json::Object{{"count", lengths.count}, {"min", lengths.min}, {"p50", lengths.p50},
                      {"p90", lengths.p90},     {"p99", lengths.p99}, {"max", lengths.max},
                      {"mean", lengths.mean}};
}

// "system 3  user 10  assistant 10"
std::string messages_text(const DatasetCounts& counts) {
  std::string out;
  for (size_t r = 0; r < role_count; ++r) {
    if (counts.messages[r] == 0) continue;
    out += format("{}{} {}", out.empty() ? "" : "  ", role_names[r], format_count(counts.messages[r]));
  }
  return out;
}

}  // namespace

json::Value messages_json(const DatasetCounts& counts) {
  json::Value out(json::Object{});
  for (size_t r = 0; r < role_count; ++r) out.set(role_names[r], counts.messages[r]);
  return out;
}

int64_t percentile(const std::vector<int32_t>& sorted, double percent) {
  DELTATUNE_ASSERT(!sorted.empty());
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()));
  const auto index = static_cast<size_t>(std::max(1.0, rank)) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

DataStats data_stats(const TokenizedSet& set, const TokenizedSet& trained, const StreamOptions& options,
                     int64_t max_length, double epochs) {
  const BatchStream stream(trained, options);
  DataStats out;
  out.counts = set.counts();
  out.lengths = length_stats(set.raw_lengths());
  out.max_length = max_length;
  out.max_tokens = options.max_tokens;
  out.rows = stream.rows_in_epoch(0);
  out.steps_per_epoch = stream.steps_per_epoch();
  out.steps = stream.steps(epochs);
  out.epochs = epochs;
  out.fill = ratio(stream.tokens(), out.rows * options.max_tokens);
  out.supervised_share = ratio(out.counts.targets, out.counts.tokens);
  out.documents_per_row = ratio(stream.conversations(), out.rows);
  out.held_out = set.size() - trained.size();
  out.fingerprint = set.fingerprint();
  return out;
}

json::Value dataset_json(const TokenizedSet& set) {
  const DatasetCounts& counts = set.counts();
  std::vector<int64_t> rows;  // by the bits of length - 1
  for (const int32_t length : set.raw_lengths()) {
    const auto bin = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(length, 1) - 1)));
    if (bin >= rows.size()) rows.resize(bin + 1);
    ++rows[bin];
  }
  json::Array histogram;
  for (size_t bin = 0; bin < rows.size(); ++bin) {
    if (histogram.empty() && rows[bin] == 0) continue;
    histogram.emplace_back(json::Array{int64_t{1} << bin, rows[bin]});
  }
  return json::Object{{"rows", counts.rows},
                      {"conversations", counts.conversations},
                      {"tokens", counts.tokens},
                      {"supervised_tokens", counts.targets},
                      {"supervised_share", ratio(counts.targets, counts.tokens)},
                      {"lengths", lengths_json(length_stats(set.raw_lengths()))},
                      {"truncated", counts.truncated},
                      {"dropped", counts.dropped},
                      {"split", counts.split},
                      {"tokens_cut", counts.tokens_cut},
                      {"skipped", counts.skipped_rows()},
                      {"empty", counts.empty},
                      {"all_masked", counts.all_masked},
                      {"masked_by_overflow", counts.masked_by_overflow},
                      {"duplicates", counts.duplicates},
                      {"histogram", std::move(histogram)}};
}

json::Value DataStats::to_json() const {
  return json::Object{{"rows", counts.rows},
                      {"conversations", counts.conversations},
                      {"held_out", held_out},
                      {"tokens", counts.tokens},
                      {"supervised_tokens", counts.targets},
                      {"supervised_share", supervised_share},
                      {"lengths", lengths_json(lengths)},
                      {"max_length", max_length},
                      {"truncated", counts.truncated},
                      {"dropped", counts.dropped},
                      {"split", counts.split},
                      {"split_pieces_masked", counts.split_pieces_masked},
                      {"masked_by_overflow", counts.masked_by_overflow},
                      {"tokens_cut", counts.tokens_cut},
                      {"skipped", skipped_json(counts)},
                      {"empty", counts.empty},
                      {"all_masked", counts.all_masked},
                      {"duplicates", counts.duplicates},
                      {"empty_assistant_turns", counts.empty_assistant_turns},
                      {"messages", messages_json(counts)},
                      {"chat_template", chat_template.empty() ? json::Value() : json::Value(chat_template)},
                      {"max_tokens", max_tokens},
                      {"packed_rows", rows},
                      {"documents_per_row", documents_per_row},
                      {"fill", fill},
                      {"steps_per_epoch", steps_per_epoch},
                      {"epochs", epochs},
                      {"steps", steps},
                      {"fingerprint", fingerprint}};
}

std::vector<std::string> DataStats::to_lines() const {
  std::vector<std::string> out;
  const auto count_line = [&](const char* label, int64_t count, const std::string& note) {
    if (count > 0)
      out.push_back(format("{:<16}{}{}{}", label, format_count(count), note.empty() ? "" : "  ", note));
  };
  out.push_back(
      format("{:<16}{}  kept {}", "rows", format_count(counts.rows), format_count(counts.conversations)));
  const json::Value skipped = skipped_json(counts);
  for (const auto& [reason, count] : skipped.as_object()) {
    count_line("  skipped", count.as_integer(), reason);
  }
  count_line("  empty", counts.empty, "without a token");
  count_line("  all masked", counts.all_masked, "without a supervised token");
  count_line("  masked by cut", counts.masked_by_overflow,
             format("supervised only beyond {} tokens", max_length));
  count_line("  too long", counts.dropped, format("over {} tokens, dropped", max_length));
  count_line("truncated", counts.truncated, format("at {} tokens", max_length));
  count_line("split", counts.split, format("into pieces of {} tokens", max_length));
  count_line("  masked pieces", counts.split_pieces_masked, "left out");
  count_line("tokens cut", counts.tokens_cut, "by max_length");
  count_line("duplicates", counts.duplicates, "rows equal to an earlier one, kept");
  count_line("held out", held_out, "conversations for evaluation (val_size)");
  count_line("empty answers", counts.empty_assistant_turns, "assistant turns without text");
  if (const std::string messages = messages_text(counts); !messages.empty())
    out.push_back(format("{:<16}{}", "messages", messages));
  if (!chat_template.empty()) out.push_back(format("{:<16}{}", "chat template", chat_template));
  out.push_back(format("{:<16}p50 {}  p90 {}  p99 {}  max {}  mean {:.1f}", "row length",
                       format_count(lengths.p50), format_count(lengths.p90), format_count(lengths.p99),
                       format_count(lengths.max), lengths.mean));
  out.push_back(format("{:<16}{}  supervised {} ({:.1f} %){}", "tokens", format_count(counts.tokens),
                       format_count(counts.targets), 100 * supervised_share,
                       held_out > 0 ? "  with those held out, as above" : ""));
  out.push_back(format("{:<16}{} of {} tokens  fill {:.1f} %  {:.1f} conversations each", "packed rows",
                       format_count(rows), format_count(max_tokens), 100 * fill, documents_per_row));
  out.push_back(format("{:<16}{} per epoch  {} in {}", "steps", format_count(steps_per_epoch),
                       format_count(steps), epochs == 1 ? "1 epoch" : format("{} epochs", epochs)));
  out.push_back(format("{:<16}{}", "fingerprint", fingerprint));
  return out;
}

}  // namespace deltatune
