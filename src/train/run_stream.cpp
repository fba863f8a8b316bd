// Opening the stream that the configuration asks for.
#include "train/run_stream.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/files.h"
#include "data/hold_out.h"
#include "data/prefetch.h"
#include "data/remote_files.h"
#include "data/row_source.h"
#include "data/streaming.h"
#include "train/run_data.h"

namespace deltatune {
namespace {

constexpr double most_weight = 1000;
constexpr double least_weight = 1e-6;

double weight_of(const std::string& text) {
  double weight = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error != std::errc() || rest != text.data() + text.size() || !(weight > 0 && weight <= most_weight)) {
    throw Error(ErrorKind::usage, format("{} is no weight", json::quote(text)), "dataset_weights",
                "give numbers above 0, up to 1000; to leave a dataset out, leave it out of `dataset` too");
  }
  if (weight < least_weight) {
    throw Error(ErrorKind::usage, format("weight {} uses less than one of a million conversations", text),
                "dataset_weights", "give 1e-6 or more; or leave the dataset out of `dataset`");
  }
  return weight;
}

std::vector<double> weights_of(const Config& config) {
  std::vector<double> out;
  if (config.dataset_weights.empty()) return out;
  if (config.dataset_weights.size() != config.dataset.size()) {
    throw Error(ErrorKind::usage,
                format("{} for {}", counted(static_cast<int64_t>(config.dataset_weights.size()), "weight"),
                       counted(static_cast<int64_t>(config.dataset.size()), "dataset")),
                "dataset_weights", "give one weight for each entry of dataset, in the same order");
  }
  for (const std::string& text : config.dataset_weights) out.push_back(weight_of(text));
  return out;
}

// Number of the entry of `dataset` that each file belongs to.
std::map<std::string, size_t> entries_of_files(const Config& config) {
  std::map<std::string, size_t> out;
  for (size_t e = 0; e < config.dataset.size(); ++e) {
    for (const fs::path& path : dataset_files({config.dataset[e]}, config.dataset_train_split))
      out[path.string()] = e;
  }
  return out;
}

void log_mixture(const std::vector<MixturePart>& parts) {
  for (const MixturePart& part : parts) {
    log::info("dataset {}: weight {}, {}, {} an epoch", part.name, part.weight,
              counted(part.size(), "conversation"), counted(part.uses(), "use"));
    if (part.size() > 0 && static_cast<double>(part.size()) * part.weight < 0.5) {
      log::warn("dataset {}: its weight is less than one conversation an epoch; one is used", part.name);
    }
  }
}

std::unique_ptr<RowStream> ahead(std::unique_ptr<RowStream> rows, const Config& config) {
  return std::make_unique<Prefetcher>(std::move(rows), config.dataloader_prefetch_factor);
}

// What identifies the files of a stream that nobody has read: names and sizes.
std::string identity_of(const std::vector<fs::path>& files) {
  Hasher hasher;
  for (const fs::path& path : files) {
    std::error_code unknown;
    const auto size = fs::file_size(path, unknown);
    hasher.update(path.filename().string()).update(unknown ? "?" : format("{}", size));
  }
  return hasher.hex();
}

void refuse_with_streaming(const Config& config) {
  const auto refuse = [](const char* what, const char* key, const char* fix) {
    throw Error(ErrorKind::usage, what, key, fix);
  };
  if (config.max_steps <= 0) {
    refuse("streaming: true needs max_steps: how many steps an epoch has is not known before it is read",
           "max_steps",
           "set max_steps; `deltatune data stats` with streaming: false counts the steps of an epoch");
  }
  if (config.val_size > 0) {
    refuse("streaming: true cannot hold out a part of data that it has not read", "val_size",
           "name an eval_dataset, or leave val_size out");
  }
  if (!config.dataset_weights.empty()) {
    refuse("streaming: true reads the files one after the other, once an epoch: there are no weights",
           "dataset_weights", "leave dataset_weights out, or set streaming: false");
  }
}

}  // namespace

void check_mixture_keys(const Config& config) {
  weights_of(config);
  const double size = config.val_size;
  if (size <= 0) return;
  if (!config.eval_dataset.empty()) {
    log::warn("val_size {} is not read: eval_dataset names the data of evaluation", size);
    return;
  }
  if (size >= 1 && size != std::floor(size)) {
    throw Error(ErrorKind::usage, format("val_size {} is neither a share nor a number of rows", size),
                "val_size", "give a share below 1, or a whole number of rows");
  }
  // Splitting makes several conversations of a row: nobody knows how many.
  const std::vector<std::string>& entries = config.dataset;
  if (config.streaming || config.overflow == "split" || entries.empty()) return;
  if (std::any_of(entries.begin(), entries.end(), [](const std::string& e) { return is_remote(e); })) return;
  const std::optional<int64_t> rows = most_rows(dataset_files(entries, config.dataset_train_split));
  if (rows) check_hold_out(size, *rows, true);
}

void check_data_keys(const Config& config) {
  check_mixture_keys(config);
  if (config.streaming) refuse_with_streaming(config);
}

std::vector<MixturePart> mixture_of(const Config& config, const TokenizedSet& set) {
  const std::vector<double> weights = weights_of(config);
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 1; })) return {};
  std::vector<MixturePart> parts;
  for (size_t e = 0; e < weights.size(); ++e) parts.push_back({config.dataset[e], 0, 0, weights[e]});
  // Conversations lie in the order of the files, and those in the order of the entries.
  const std::map<std::string, size_t> entries = entries_of_files(config);
  const std::string* file = nullptr;
  size_t entry = 0;
  for (int64_t i = 0; i < set.size(); ++i) {
    if (&set.file(i) != file) {
      file = &set.file(i);
      const auto found = entries.find(*file);
      DELTATUNE_ASSERT(found != entries.end() && found->second >= entry);
      entry = found->second;
    }
    ++parts[entry].end;
  }
  int64_t at = 0;
  for (MixturePart& part : parts) {
    part.begin = at;
    at = part.end += at;
  }
  check_mixture(parts, set.size());
  return parts;
}

RunStream open_stream(const Config& config, const TokenizedSet& set, int32_t pad_id) {
  StreamOptions options = stream_options(config, pad_id);
  options.mixture = mixture_of(config, set);
  log_mixture(options.mixture);
  auto stream = std::make_unique<BatchStream>(set, options);
  RunStream out;
  out.max_segments = stream->max_segments();
  out.total_steps = config.max_steps > 0 ? config.max_steps : stream->steps(config.num_train_epochs);
  log::info("data: {}, {}, {} supervised; {} of {} with at most {}, {} an epoch",
            counted(set.size(), "conversation"), counted(set.counts().tokens, "token"),
            format_count(set.counts().targets), counted(stream->rows_in_epoch(0), "row"), config.max_tokens,
            counted(out.max_segments - 1, "conversation"), counted(stream->steps_per_epoch(), "step"));
  out.rows = ahead(std::move(stream), config);
  return out;
}

RunStream open_streaming(const Config& config, const ModelSource& source, const TextSource& text,
                         std::shared_ptr<SkippedRowsFile> skipped) {
  StreamingOptions options;
  options.rows = dataset_options(config, source.config.vocab_size);
  options.files = dataset_files(config.dataset, config.dataset_train_split);
  options.stream = stream_options(config, text.pad_id());
  options.shuffle_buffer_size = config.shuffle_buffer_size;
  options.identity = identity_of(options.files);
  if (skipped) {
    options.on_skip = [skipped = std::move(skipped)](const std::string& file, int64_t line,
                                                     const RowError& problem) {
      skipped->add(file, line, problem);
    };
  }
  RunStream out;
  out.max_segments = max_segments(config);
  out.total_steps = config.max_steps;
  log::info("data: streaming {}, tokenised as they are read, shuffled and packed among {}; {}",
            counted(static_cast<int64_t>(options.files.size()), "file"),
            counted(config.shuffle_buffer_size, "conversation"), counted(out.total_steps, "step"));
  out.rows = ahead(std::make_unique<StreamingBatches>(std::move(options), text.encoder()), config);
  return out;
}

}  // namespace deltatune
