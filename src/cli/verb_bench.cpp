// `deltatune bench op [glob]`: the ops of a training step at a model's shapes, one by one.
// `deltatune bench step`: whole steps of its first layers.
#include <string>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "cli/bench_output.h"
#include "cli/device.h"
#include "cli/verbs.h"
#include "io/model_path.h"
#include "ops/cuda_plugin.h"
#include "ops/op.h"
#include "train/bench_bits.h"
#include "train/bench_model.h"
#include "train/bench_op.h"
#include "train/bench_step.h"
#include "train/setup.h"

namespace deltatune::cli {
namespace {

/// Before anything is allocated: does the glob name any op?
void check_glob(const std::string& glob) {
  for (size_t op = 0; op < static_cast<size_t>(Op::count); ++op) {
    if (glob_match(glob, name_of(static_cast<Op>(op)))) return;
  }
  throw Error(ErrorKind::usage, format("no op is called {}", glob), "command line",
              "`deltatune bench op` without a name times all of them; put a glob in quotes");
}

}  // namespace

int verb_bench_step(const Invocation& call) {
  const Config& config = call.config();
  check_result_file(config.bench_json, "--json");
  BenchStepOptions options;
  options.model = bench_model_config(config.bench_model);
  options.model_name = config.bench_model;
  options.depths = bench_depths(config, options.model.layers());
  options.tokens = config.bench_tokens;
  options.lengths = bench_lengths(config.bench_lengths, config.bench_tokens);
  options.storage = storage_dtype(config);
  // auto depends on the memory that a depth leaves, which says nothing about the whole model.
  options.recompute = config.recompute == "auto" ? "block" : config.recompute;
  options.optimizer = bench_optimizer(config);
  options.graph = graph_mode(config);
  options.deterministic = config.deterministic;
  options.allow_slow_kernels = config.allow_slow_kernels;
  options.tune_matmuls = config.matmul_tuning == "auto";
  options.cache_folder = program_cache().string();
  const auto device = open_device(config);
  options.peak_tflop_s = peak_of(*device);
  if (device->target() == Target::cuda) options.pci_bus_id = gpu_identity(*device).pci_bus_id;
  std::string why;
  if (const CudaPlugin* plugin = device->target() == Target::cuda ? cuda_plugin(why) : nullptr) {
    options.tracer = plugin->activity;
  }
  if (config.bench_bits > 0) {
    const BitsReport bits = check_bits(*device, options, config.bench_bits);
    std::string text;
    for (const std::string& line : bits.lines) text += line + "\n";
    text += format("{} of {} differ\n", bits.different, counted(bits.rounds, "round"));
    json::Array lines(bits.lines.begin(), bits.lines.end());
    report_bench(
        call, *device, text,
        json::Object{{"rounds", bits.rounds}, {"different", bits.different}, {"lines", std::move(lines)}});
    return bits.different == 0 ? 0 : exit_code(ErrorKind::diverged);
  }
  const BenchStepReport report = bench_step(*device, options);
  report_bench(call, *device, report.to_text(), report.to_json());
  return 0;
}

int verb_bench_op(const Invocation& call) {
  const Config& config = call.config();
  if (call.arguments.size() > 1) {
    throw Error(ErrorKind::usage, "unexpected argument " + call.arguments[1], "command line",
                "usage: deltatune bench op [glob]; put a glob in quotes");
  }
  check_result_file(config.bench_json, "--json");
  BenchOpOptions options;
  options.model = bench_model_config(config.bench_model);
  options.model_name = config.bench_model;
  options.tokens = config.bench_tokens;
  options.lengths = bench_lengths(config.bench_lengths, config.bench_tokens);
  options.storage = storage_dtype(config);
  options.optimizer = bench_optimizer(config);
  if (!call.arguments.empty()) options.glob = call.arguments[0];
  check_glob(options.glob);
  options.kernel = config.bench_kernel;
  options.deterministic = config.deterministic;
  options.allow_slow_kernels = config.allow_slow_kernels;
  options.tune_matmuls = config.matmul_tuning == "auto";
  options.cache_folder = program_cache().string();
  const auto device = open_device(config);
  const BenchOpReport report = bench_ops(*device, options);
  report_bench(call, *device, report.to_text(), report.to_json());
  return 0;
}

}  // namespace deltatune::cli
