// `deltatune bench op [glob]`: the ops of a training step at a model's shapes, one by one.
// `deltatune bench step`: whole steps of its first layers.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "build_info.h"
#include "cli/device.h"
#include "cli/verbs.h"
#include "io/model_path.h"
#include "observe/device_card.h"
#include "observe/machine.h"
#include "ops/cuda_plugin.h"
#include "ops/op.h"
#include "train/bench_model.h"
#include "train/bench_op.h"
#include "train/bench_step.h"
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

void report_to(const Invocation& call, const Device& device, const std::string& text, json::Value report) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  const std::string& file = call.config().bench_json;
  if (file.empty()) return;
  json::Value out = circumstances(call, device);
  out.set("bench", std::move(report));
  write_file_atomic(file, json::dump(out, 2) + "\n");
}

/// Before minutes are spent: can the results be written?
void check_json(const Config& config) {
  if (config.bench_json.empty()) return;
  const fs::path file = config.bench_json;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::error_code error;
  if (fs::is_directory(folder, error) && access(folder.c_str(), W_OK) == 0 &&
      !fs::is_directory(file, error)) {
    return;
  }
  throw Error(ErrorKind::usage, format("results cannot be written to {}", file.string()), "--json",
              "name a file in a folder that exists and can be written to");
}

bool has_gpu(std::string_view name) {
  const json::Value machine = machine_json();
  const json::Value* gpus = machine.find("gpus");
  if (gpus == nullptr || gpus->as_array().empty()) return false;
  return gpus->as_array()[0].as_string().find(name) != std::string::npos;
}

/// Before anything is allocated: does the glob name any op?
void check_glob(const std::string& glob) {
  for (size_t op = 0; op < static_cast<size_t>(Op::count); ++op) {
    if (glob_match(glob, name_of(static_cast<Op>(op)))) return;
  }
  throw Error(ErrorKind::usage, format("no op is called {}", glob), "command line",
              "`deltatune bench op` without a name times all of them; put a glob in quotes");
}

/// --depths, or half of --layers and --layers, of which the model may have fewer.
std::vector<int64_t> depths(const Config& config, int64_t model_layers) {
  if (config.bench_depths.empty()) {
    const int64_t layers = std::min(config.bench_layers, model_layers);
    return layers < 2 ? std::vector<int64_t>{layers} : std::vector<int64_t>{layers / 2, layers};
  }
  std::vector<int64_t> out;
  for (const std::string& list : config.bench_depths) {
    for (size_t at = 0; at < list.size();) {
      const size_t end = std::min(list.find(',', at), list.size());
      int64_t depth = 0;
      const auto [rest, error] = std::from_chars(list.data() + at, list.data() + end, depth);
      if (error != std::errc() || rest != list.data() + end) {
        throw Error(ErrorKind::usage, format("\"{}\" is no list of numbers of layers", list), "--depths",
                    "write --depths 4,8");
      }
      out.push_back(depth);
      at = end + 1;
    }
  }
  if (out.empty())
    throw Error(ErrorKind::usage, "the list of depths is empty", "--depths", "write --depths 4,8");
  return out;
}

}  // namespace

int verb_bench_step(const Invocation& call) {
  const Config& config = call.config();
  check_json(config);
  BenchStepOptions options;
  options.model = bench_model_config(config.bench_model);
  options.model_name = config.bench_model;
  options.depths = depths(config, options.model.layers());
  options.tokens = config.bench_tokens;
  options.lengths = bench_lengths(config.bench_lengths);
  options.storage = storage_dtype(config);
  // auto depends on the memory that a depth leaves, which says nothing about the whole model.
  options.recompute = config.recompute == "auto" ? "block" : config.recompute;
  options.moments = moments_dtype(config);
  options.master_weights = config.master_weights;
  options.rounding = weight_rounding(config);
  options.graph = graph_mode(config);
  options.deterministic = config.deterministic;
  options.allow_slow_kernels = config.allow_slow_kernels;
  options.tune_matmuls = config.matmul_tuning == "auto";
  options.cache_folder = program_cache().string();
  const auto device = open_device(config);
  // MFU only against a peak that is this GPU's.
  if (device->target() == Target::cuda && has_gpu("H200")) {
    options.peak_tflop_s = device_card("h200").peak_tflops_bf16_dense;
  }
  std::string why;
  if (const CudaPlugin* plugin = device->target() == Target::cuda ? cuda_plugin(why) : nullptr) {
    options.tracer = plugin->activity;
  }
  const BenchStepReport report = bench_step(*device, options);
  report_to(call, *device, report.to_text(), report.to_json());
  return 0;
}

int verb_bench_op(const Invocation& call) {
  const Config& config = call.config();
  if (call.arguments.size() > 1) {
    throw Error(ErrorKind::usage, "unexpected argument " + call.arguments[1], "command line",
                "usage: deltatune bench op [glob]; put a glob in quotes");
  }
  check_json(config);
  BenchOpOptions options;
  options.model = bench_model_config(config.bench_model);
  options.model_name = config.bench_model;
  options.tokens = config.bench_tokens;
  options.lengths = bench_lengths(config.bench_lengths);
  options.storage = storage_dtype(config);
  if (!call.arguments.empty()) options.glob = call.arguments[0];
  check_glob(options.glob);
  options.kernel = config.bench_kernel;
  options.deterministic = config.deterministic;
  options.allow_slow_kernels = config.allow_slow_kernels;
  options.tune_matmuls = config.matmul_tuning == "auto";
  options.cache_folder = program_cache().string();
  const auto device = open_device(config);
  const BenchOpReport report = bench_ops(*device, options);
  report_to(call, *device, report.to_text(), report.to_json());
  return 0;
}

}  // namespace deltatune::cli
