// Loading tokenizer, template and datasets as the configuration says.
#include "train/run_data.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "data/hold_out.h"
#include "data/skipped_rows.h"
#include "io/model_path.h"
#include "train/engine.h"

namespace deltatune {
namespace {

void check_vocabulary(const Tokenizer& tokenizer, const ModelSource& source, const fs::path& folder) {
  if (tokenizer.vocab_size() <= source.config.vocab_size) return;
  throw Error(ErrorKind::model,
              format("the tokenizer has {} ids, the model's embedding only {} rows", tokenizer.vocab_size(),
                     source.config.vocab_size),
              folder.string(), "take the tokenizer that belongs to the model");
}

OnBadRow on_bad_row(const Config& config) {
  return config.on_bad_row == "skip" ? OnBadRow::skip : OnBadRow::error;
}

Overflow overflow(const Config& config) {
  if (config.overflow == "drop") return Overflow::drop;
  return config.overflow == "split" ? Overflow::split : Overflow::truncate;
}

// The program is part of what makes tokens: another build may have another tokenizer. Empty where it cannot
// be read.
std::string program_hash() {
  static const std::string hash = [] {
    try {
      return hash_hex(MappedFile("/proc/self/exe").text());
    } catch (const Error&) {
      return std::string();
    }
  }();
  return hash;
}

}  // namespace

TextSource open_run_text(const Config& config, const ModelSource& source, bool required) {
  TextSource text = open_text(config, required);
  if (text.tokenizer) check_vocabulary(*text.tokenizer, source, text.folder);
  return text;
}

std::vector<int32_t> stop_ids(const TextSource& text, const ModelSource& source) {
  std::vector<int32_t> out;
  const auto add = [&](int64_t id) {
    if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(static_cast<int32_t>(id));
  };
  if (text.tokenizer && text.tokenizer->eos_id()) add(*text.tokenizer->eos_id());
  for (const int64_t id : source.config.eos_token_ids) add(id);
  const fs::path path = source.folder / "generation_config.json";
  if (!fs::exists(path)) return out;
  const json::Value config = json::parse_file(path.string());
  const json::Value* eos = config.find("eos_token_id");
  if (eos && eos->is_integer()) add(eos->as_integer());
  if (eos && eos->is_array()) {
    for (const json::Value& id : eos->as_array()) add(id.as_integer());
  }
  return out;
}

DatasetOptions dataset_options(const Config& config, int64_t vocab_size) {
  DatasetOptions options;
  options.on_bad_row = on_bad_row(config);
  options.overflow = overflow(config);
  options.max_length = std::min(config.max_length, config.max_tokens);
  if (options.max_length < config.max_length) {
    log::info("conversations are limited to {} tokens, the slots of a row (max_tokens); max_length is {}",
              config.max_tokens, config.max_length);
  }
  options.max_tokens = config.max_tokens;
  options.vocab_size = vocab_size;
  options.schema = schema_options(config.dataset_schema, config.messages_field);
  options.split = config.dataset_train_split;
  return options;
}

CacheOptions cache_options(const Config& config, const TextSource& text) {
  CacheOptions out;
  if (config.dataset_cache == "off" || config.dataset_cache.empty()) return out;
  const bool chosen = config.dataset_cache != "auto";
  out.folder = chosen ? fs::path(config.dataset_cache) : program_cache();
  if (!chosen && !out.folder.empty()) out.folder /= "datasets";
  out.least_bytes = chosen ? 0 : int64_t{4} << 20;
  out.most_bytes = static_cast<int64_t>(std::min(config.dataset_cache_limit, 1e9) * (1 << 30));
  out.recipe = program_hash() + text.fingerprint();
  if (program_hash().empty()) out.folder.clear();
  if (text.chat_template != nullptr && text.chat_template->names_time()) {
    log::info("no token cache: the chat template prints the time");
    out.folder.clear();
  }
  return out;
}

TokenizedSet load_set(const std::vector<std::string>& entries, const std::string& split, const Config& config,
                      int64_t vocab_size, const TextSource& text) {
  DatasetOptions options = dataset_options(config, vocab_size);
  options.split = split;
  options.cache = cache_options(config, text);
  return load_dataset(entries, options, text.encoder());
}

TokenizedSet load_set(const std::vector<std::string>& entries, const std::string& split, const Config& config,
                      const ModelSource& source, const TextSource& text) {
  return load_set(entries, split, config, source.config.vocab_size, text);
}

void write_skipped_rows(const TokenizedSet& set, const fs::path& folder) {
  const fs::path path = folder / "skipped_rows.jsonl";
  if (set.skipped().empty()) {
    std::error_code code;
    fs::remove(path, code);
    return;
  }
  std::string text;
  for (const SkippedRow& row : set.skipped()) {
    text += skipped_row_line(set.file_name(row.file), row.line, row.problem,
                             Error(ErrorKind::data, row.what, row.where, row.fix));
  }
  write_file_atomic(path, text);
  log::info("{} skipped rows are listed in {}", set.skipped().size(), path.string());
}

int64_t max_segments(const Config& config) {
  const int64_t wish =
      config.max_documents > 0 ? config.max_documents + 1 : default_max_documents(config.max_tokens);
  return std::min(wish, config.max_tokens);
}

Config with_segments(const Config& config, int64_t segments) {
  Config out = config;
  out.max_documents = std::max<int64_t>(1, std::min(segments, max_segments(config)) - 1);
  return out;
}

TokenizedSet training_part(const Config& config, const TokenizedSet& set) {
  if (config.val_size <= 0 || !config.eval_dataset.empty()) return set;
  return hold_out(set, config.val_size, static_cast<uint64_t>(config.seed)).first;
}

StreamOptions stream_options(const Config& config, int32_t pad_id) {
  StreamOptions options;
  options.max_tokens = config.max_tokens;
  options.world_size = config.world_size;
  options.rank = config.rank;
  options.seed = static_cast<uint64_t>(config.data_seed >= 0 ? config.data_seed : config.seed);
  options.gradient_accumulation_steps = config.gradient_accumulation_steps;
  options.pad_id = pad_id;
  if (config.batching == "padded") options.batching = Batching::padded;
  if (config.batching == "sorted") options.batching = Batching::sorted;
  options.max_segments = max_segments(config);
  return options;
}

}  // namespace deltatune
