// `deltatune eval cfg.yaml`: loss and perplexity of a checkpoint on eval_dataset; without one on the part of
// dataset that val_size holds out of training, and without val_size on all of dataset.
#include <cmath>
#include <cstdio>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "cli/device.h"
#include "cli/verbs.h"
#include "comm/communicator.h"
#include "data/hold_out.h"
#include "train/evaluate.h"
#include "train/run_data.h"
#include "train/run_stream.h"
#include "train/setup.h"

namespace deltatune::cli {

int verb_eval(const Invocation& call) {
  const Config& config = call.config();
  const bool own = !config.eval_dataset.empty();
  const std::vector<std::string>& entries = own ? config.eval_dataset : config.dataset;
  const std::string& split = own ? config.dataset_test_split : config.dataset_train_split;
  if (entries.empty()) {
    throw Error(ErrorKind::usage, "no dataset is named", "eval_dataset", "give --eval_dataset FILE");
  }
  if (!own) check_mixture_keys(config);
  const auto device = open_device(config);
  const ModelSource source = open_trained_model(config.model_name_or_path, config.init);
  const TextSource text = open_run_text(config, source, false);
  TokenizedSet set = load_set(entries, split, config, source, text);
  if (!own && config.val_size > 0) {
    set = hold_out(set, config.val_size, static_cast<uint64_t>(config.seed)).second;
  }
  const StreamOptions rows = stream_options(config, text.pad_id());
  const Config sized = with_segments(config, EvalBatches(set, rows).max_segments());
  const auto comm = make_solo_communicator();
  Engine engine(*device, *comm, source.config, source.tied, engine_options(sized, Keep::nothing(), false));
  fill_store(engine.store(), engine.stream(), source, static_cast<uint64_t>(config.seed));
  const EvalResult result = evaluate(engine, set, rows);
  if (config.json) {
    json::Value out;
    out.set("eval_loss", result.loss());
    out.set("perplexity", std::exp(result.loss()));
    out.set("loss_sum", result.loss_sum);
    out.set("target_tokens", result.targets);
    out.set("tokens", result.tokens);
    out.set("conversations", set.size());
    out.set("time_s", result.seconds);
    std::printf("%s\n", json::dump(out, 2).c_str());
  } else {
    const std::string line =
        format("eval_loss {:.8f}  perplexity {:.4f}  {}, {}, {}\n", result.loss(), std::exp(result.loss()),
               counted(set.size(), "conversation"), counted(result.targets, "supervised token"),
               format_duration(result.seconds));
    std::fwrite(line.data(), 1, line.size(), stdout);
  }
  return 0;
}

}  // namespace deltatune::cli
