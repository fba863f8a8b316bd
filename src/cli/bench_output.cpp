// Circumstances of a measurement, and where results go.
#include "cli/bench_output.h"

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
#include "observe/device_card.h"
#include "observe/machine.h"
#include "ops/cuda_plugin.h"
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

bool has_gpu(std::string_view name) {
  const json::Value machine = machine_json();
  const json::Value* gpus = machine.find("gpus");
  if (gpus == nullptr || gpus->as_array().empty()) return false;
  return gpus->as_array()[0].as_string().find(name) != std::string::npos;
}

}  // namespace

void report_bench(const Invocation& call, const Device& device, const std::string& text, json::Value report) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  const std::string& file = call.config().bench_json;
  if (file.empty()) return;
  json::Value out = circumstances(call, device);
  out.set("bench", std::move(report));
  write_file_atomic(file, json::dump(out, 2) + "\n");
}

void check_result_file(const std::string& name, const char* flag) {
  if (name.empty()) return;
  const fs::path file = name;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::error_code error;
  if (fs::is_directory(folder, error) && access(folder.c_str(), W_OK) == 0 &&
      !fs::is_directory(file, error)) {
    return;
  }
  throw Error(ErrorKind::usage, format("results cannot be written to {}", file.string()), flag,
              "name a file in a folder that exists and can be written to");
}

std::vector<int64_t> bench_depths(const Config& config, int64_t model_layers) {
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

BenchOptimizer bench_optimizer(const Config& config) {
  return {moments_dtype(config), config.master_weights, weight_rounding(config)};
}

double peak_of(const Device& device) {
  // Only against a peak that is this GPU's.
  return device.target() == Target::cuda && has_gpu("H200") ? device_card("h200").peak_tflops_bf16_dense : 0;
}

}  // namespace deltatune::cli
