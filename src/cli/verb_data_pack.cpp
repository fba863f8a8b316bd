// `deltatune data pack`: rows, steps and fill of an epoch, of the dataset or of a file of lengths.
#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/format.h"
#include "cli/verbs.h"
#include "data/lengths_file.h"
#include "data/pack_report.h"
#include "train/run_data.h"
#include "train/run_stream.h"

namespace deltatune::cli {
namespace {

std::vector<int32_t> lengths_of_dataset(const Config& config, StreamOptions& options) {
  const TextSource text = open_text(config);
  const TokenizedSet set = training_part(config, load_set(config.dataset, config.dataset_train_split, config,
                                                          vocab_size_of(config, text), text));
  options.mixture = mixture_of(config, set);
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < set.size(); ++i) lengths.push_back(static_cast<int32_t>(set.length(i)));
  return lengths;
}

}  // namespace

int verb_data_pack(const Invocation& call) {
  const Config& config = call.config();
  if (config.pack_lengths.empty() && config.dataset.empty()) {
    throw Error(ErrorKind::usage, "there is nothing to pack", "dataset, --lengths",
                "name a dataset, or a file of lengths with --lengths FILE");
  }
  if (config.pack_lengths.empty()) check_mixture_keys(config);
  StreamOptions options = stream_options(config, 0);
  const std::vector<int32_t> lengths = config.pack_lengths.empty()
                                           ? lengths_of_dataset(config, options)
                                           : read_lengths(config.pack_lengths, config.max_tokens);
  const PackReport report = pack_report(lengths, options, config.compare);
  if (config.json) {
    std::printf("%s\n", json::dump(report.to_json(), 2).c_str());
  } else {
    for (const std::string& line : report.to_lines()) std::printf("%s\n", line.c_str());
  }
  return 0;
}

}  // namespace deltatune::cli
