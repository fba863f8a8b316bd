// Packs an epoch in each way and counts.
#include "data/pack_report.h"

#include <algorithm>

#include "base/clock.h"
#include "base/counted.h"
#include "base/format.h"

namespace deltatune {
namespace {

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

int64_t padding_of(const PackedRows& rows, std::span<const int32_t> lengths) {
  int64_t sum = 0;
  for (int64_t r = 0; r < rows.rows(); ++r) {
    const int32_t width = rows.padded_to[static_cast<size_t>(r)];
    if (width == 0) continue;
    for (const int32_t document : rows.row(r)) sum += width - lengths[static_cast<size_t>(document)];
  }
  return sum;
}

PackLine line_of(std::span<const int32_t> lengths, StreamOptions options, Batching batching, int64_t tokens) {
  options.batching = batching;
  const Stopwatch clock;
  const EpochRows epoch = make_epoch_rows(lengths, options, 0);
  PackLine line;
  line.seconds = clock.seconds();
  line.name = name_of(batching);
  line.rows = epoch.rows.rows();
  line.steps = steps_of_rows(line.rows, options);
  const int64_t slots = line.rows * options.max_tokens;
  const int64_t padding = padding_of(epoch.rows, lengths);
  line.fill = share(tokens, slots);
  line.padding = share(padding, slots);
  line.unused = share(slots - tokens - padding, slots);
  line.rectangle_waste = share(padding, padding + tokens);
  return line;
}

}  // namespace

PackReport pack_report(std::span<const int32_t> lengths, const StreamOptions& options, bool compare) {
  check_options(options);
  PackReport out;
  check_mixture(options.mixture, static_cast<int64_t>(lengths.size()));
  out.max_tokens = options.max_tokens;
  out.rows_per_step = options.rows_per_step();
  const auto count = static_cast<int64_t>(lengths.size());
  for (const int32_t document : mixed_documents(options.mixture, count, options.seed, 0)) {
    const int32_t length = lengths[static_cast<size_t>(document)];
    ++out.conversations;
    out.tokens += length;
    out.longest = std::max<int64_t>(out.longest, length);
  }
  std::vector<Batching> ways = {options.batching};
  if (compare) ways = {Batching::padded, Batching::sorted, Batching::packed};
  for (const Batching way : ways) out.lines.push_back(line_of(lengths, options, way, out.tokens));
  PackLine& limit = out.lines.emplace_back();
  limit.name = "limit";
  limit.rows = (out.tokens + options.max_tokens - 1) / options.max_tokens;
  limit.steps = steps_of_rows(limit.rows, options);
  limit.fill = share(out.tokens, limit.rows * options.max_tokens);
  limit.unused = 1 - limit.fill;
  if (out.lines[0].name == name_of(Batching::padded)) {
    for (PackLine& line : out.lines) line.fewer_steps = 1 - share(line.steps, out.lines[0].steps);
  }
  return out;
}

json::Value PackReport::to_json() const {
  const bool against_padded = lines[0].name == name_of(Batching::padded);
  json::Array ways;
  for (const PackLine& line : lines) {
    ways.push_back(json::Object{
        {"batching", line.name},
        {"rows", line.rows},
        {"steps", line.steps},
        {"fill", line.fill},
        {"padding", line.padding},
        {"unused", line.unused},
        {"padding_in_rectangles", line.rectangle_waste},
        {"fewer_steps_than_padded", against_padded ? json::Value(line.fewer_steps) : json::Value()},
        {"seconds", line.seconds}});
  }
  return json::Object{{"conversations", conversations},
                      {"tokens", tokens},
                      {"longest", longest},
                      {"max_tokens", max_tokens},
                      {"rows_per_step", rows_per_step},
                      {"batchings", std::move(ways)}};
}

std::vector<std::string> PackReport::to_lines() const {
  std::vector<std::string> out;
  out.push_back(format("{}, {}, the longest {}; rows of {}, {} a step",
                       counted(conversations, "conversation"), counted(tokens, "token"),
                       format_count(longest), counted(max_tokens, "slot"), format_count(rows_per_step)));
  out.push_back(format("{:<9}{:>11}{:>11}{:>10}{:>10}{:>10}{:>21}{:>10}", "batching", "rows", "steps", "fill",
                       "padding", "unused", "steps below padded", "packed in"));
  const bool against_padded = lines[0].name == name_of(Batching::padded);
  for (const PackLine& line : lines) {
    const std::string fewer = against_padded ? format("{:.2f} %", 100 * line.fewer_steps) : "-";
    const std::string time = line.name == "limit" ? "-" : format("{:.3f} s", line.seconds);
    out.push_back(format("{:<9}{:>11}{:>11}{:>8.2f} %{:>8.2f} %{:>8.2f} %{:>21}{:>10}", line.name,
                         format_count(line.rows), format_count(line.steps), 100 * line.fill,
                         100 * line.padding, 100 * line.unused, fewer, time));
  }
  return out;
}

}  // namespace deltatune
