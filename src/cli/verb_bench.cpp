// `deltatune bench op [glob]`: the ops of a training step at a model's shapes, one by one.
#include <cstdio>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "build_info.h"
#include "cli/device.h"
#include "cli/verbs.h"
#include "io/model_path.h"
#include "observe/machine.h"
#include "ops/cuda_plugin.h"
#include "train/bench_model.h"
#include "train/bench_op.h"
#include "train/setup.h"

namespace deltatune::cli {
namespace {

/// What a figure needs beside itself: machine, driver, libraries, commit, command.
json::Value circumstances(const Invocation& call, const Device& device) {
  json::Value out;
  out.set("date", timestamp_utc());
  out.set("command_line", call.command_line);
  out.set("version", build_info::version);
  out.set("commit", build_info::commit);
  out.set("compiler", build_info::compiler);
  out.set("machine", machine_json());
  std::string why;
  if (device.target() == Target::cuda) {
    if (const CudaPlugin* plugin = cuda_plugin(why)) out.set("cuda_libraries", plugin->versions());
  }
  return out;
}

}  // namespace

int verb_bench_op(const Invocation& call) {
  const Config& config = call.config();
  if (call.arguments.size() > 1) {
    throw Error(ErrorKind::usage, "unexpected argument " + call.arguments[1], "command line",
                "usage: deltatune bench op [glob]; put a glob in quotes");
  }
  BenchOpOptions options;
  options.model = bench_model_config(config.bench_model);
  options.model_name = config.bench_model;
  options.tokens = config.bench_tokens;
  options.lengths = bench_lengths(config.bench_lengths);
  options.storage = storage_dtype(config);
  if (!call.arguments.empty()) options.glob = call.arguments[0];
  options.kernel = config.bench_kernel;
  options.deterministic = config.deterministic;
  options.allow_slow_kernels = config.allow_slow_kernels;
  options.tune_matmuls = config.matmul_tuning == "auto";
  options.cache_folder = program_cache().string();
  const auto device = open_device(config);
  const BenchOpReport report = bench_ops(*device, options);
  const std::string text = report.to_text();
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!config.bench_json.empty()) {
    json::Value out = circumstances(call, *device);
    out.set("bench", report.to_json());
    write_file_atomic(config.bench_json, json::dump(out, 2) + "\n");
  }
  return 0;
}

}  // namespace deltatune::cli
