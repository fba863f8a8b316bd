// Cache files of datasets.
#include "data/dataset_cache.h"

#include <array>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "data/token_cache.h"

namespace deltatune {
namespace {

struct Count {
  const char* name;
  int64_t DatasetCounts::*member;
};
constexpr std::array counts_by_name = {
    Count{"rows", &DatasetCounts::rows},
    Count{"empty", &DatasetCounts::empty},
    Count{"all_masked", &DatasetCounts::all_masked},
    Count{"masked_by_overflow", &DatasetCounts::masked_by_overflow},
    Count{"truncated", &DatasetCounts::truncated},
    Count{"dropped", &DatasetCounts::dropped},
    Count{"split", &DatasetCounts::split},
    Count{"split_pieces_masked", &DatasetCounts::split_pieces_masked},
    Count{"tokens_cut", &DatasetCounts::tokens_cut},
    Count{"duplicates", &DatasetCounts::duplicates},
    Count{"empty_assistant_turns", &DatasetCounts::empty_assistant_turns},
    Count{"conversations", &DatasetCounts::conversations},
    Count{"tokens", &DatasetCounts::tokens},
    Count{"targets", &DatasetCounts::targets},
};

int64_t number_in(const json::Value& value, int64_t end) {
  const int64_t number = value.as_integer();
  if (number >= 0 && number < end) return number;
  throw Error(ErrorKind::data, format("{} is outside [0, {})", number, end), "meta of the token cache");
}

}  // namespace

int64_t total_bytes(const std::vector<fs::path>& files) {
  int64_t sum = 0;
  for (const fs::path& file : files) {
    std::error_code code;
    const auto size = fs::file_size(file, code);
    if (!code) sum += static_cast<int64_t>(size);
  }
  return sum;
}

std::string dump_meta(const CacheMeta& meta) {
  json::Value counts(json::Object{});
  for (const Count& count : counts_by_name) counts.set(count.name, meta.counts.*count.member);
  json::Array by_problem(meta.counts.skipped.begin(), meta.counts.skipped.end());
  counts.set("skipped", std::move(by_problem));
  counts.set("messages", json::Array(meta.counts.messages.begin(), meta.counts.messages.end()));
  json::Array skipped;
  for (const SkippedRow& row : meta.skipped) {
    skipped.emplace_back(json::Array{int64_t{row.file}, row.line, static_cast<int64_t>(row.problem), row.what,
                                     row.where, row.fix});
  }
  json::Array notices(meta.notices.begin(), meta.notices.end());
  return json::dump(
      json::Object{{"counts", counts}, {"skipped", std::move(skipped)}, {"notices", std::move(notices)}});
}

CacheMeta parse_meta(const std::string& text, int64_t files) {
  constexpr int64_t most = int64_t{1} << 56;
  const json::Value root = json::parse(text, "meta of the token cache");
  CacheMeta out;
  const json::Value& counts = root.at("counts");
  for (const Count& count : counts_by_name) out.counts.*count.member = number_in(counts.at(count.name), most);
  const json::Array& by_problem = counts.at("skipped").as_array();
  for (size_t i = 0; i < out.counts.skipped.size() && i < by_problem.size(); ++i)
    out.counts.skipped[i] = number_in(by_problem[i], most);
  const json::Array& by_role = counts.at("messages").as_array();
  for (size_t r = 0; r < role_count && r < by_role.size(); ++r)
    out.counts.messages[r] = number_in(by_role[r], most);
  for (const json::Value& value : root.at("skipped").as_array()) {
    const json::Array& row = value.as_array();
    if (row.size() != 6) throw Error(ErrorKind::data, "a skipped row has 6 parts", "meta of the token cache");
    out.skipped.push_back({static_cast<int32_t>(number_in(row[0], files)), number_in(row[1], most),
                           static_cast<RowProblem>(number_in(row[2], row_problem_count)), row[3].as_string(),
                           row[4].as_string(), row[5].as_string()});
  }
  for (const json::Value& notice : root.at("notices").as_array()) out.notices.push_back(notice.as_string());
  return out;
}

DatasetCache::DatasetCache(const CacheOptions& options, const std::vector<fs::path>& files,
                           const RowOptions& rows)
    : stamps_(files),
      key_(cache_key(files, rows, options.recipe)),
      path_(options.folder / (key_ + ".tokens")),
      vocab_size_(rows.vocab_size),
      max_length_(rows.max_length),
      most_bytes_(options.most_bytes) {
  for (const fs::path& file : files) names_.push_back(file.string());
}

std::optional<TokenizedSet> DatasetCache::read() const {
  std::error_code code;
  if (!fs::exists(path_, code)) return std::nullopt;
  try {
    const auto files = static_cast<int64_t>(names_.size());
    TokenCacheContent content = open_token_cache(path_, key_, vocab_size_, max_length_, files);
    CacheMeta meta = parse_meta(content.meta, files);
    touch_cache(path_);
    log::info("tokens of {} from {}", counted(meta.counts.conversations, "conversation"), path_.string());
    for (const std::string& notice : meta.notices) log::info("{}", notice);
    log_left_out(meta.counts, max_length_);
    return TokenizedSet(std::move(content.storage), names_, meta.counts, std::move(content.fingerprint),
                        std::move(meta.skipped));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
    log::warn("{} ({}): it is made again", error.what(), error.where());
    return std::nullopt;
  }
}

void log_left_out(const DatasetCounts& counts, int64_t max_length) {
  if (counts.conversations != counts.rows) {
    log::info("{} from {}", counted(counts.conversations, "conversation"), describe_rows(counts));
  }
  if (counts.truncated + counts.split > 0) {
    log::info("longer than max_length {}: {} truncated, {} split; {} left out", max_length, counts.truncated,
              counts.split, counted(counts.tokens_cut, "token"));
  }
  if (counts.empty_assistant_turns > 0) {
    log::warn("{} {} empty: they train the model to end its turn at once",
              counted(counts.empty_assistant_turns, "assistant turn"),
              counts.empty_assistant_turns == 1 ? "is" : "are");
  }
}

std::string describe_rows(const DatasetCounts& counts) {
  return format("{}: {} malformed, {} empty, {} without a supervised token, {} too long",
                counted(counts.rows, "row"), counts.skipped_rows(), counts.empty, counts.all_masked,
                counts.dropped + counts.masked_by_overflow);
}

}  // namespace deltatune
