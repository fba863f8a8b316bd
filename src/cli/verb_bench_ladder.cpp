// `deltatune bench ladder`: what each change is worth, in hours of an epoch.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/bench_output.h"
#include "cli/device.h"
#include "cli/verbs.h"
#include "io/model_path.h"
#include "ops/cuda_plugin.h"
#include "train/bench_ladder.h"
#include "train/bench_model.h"
#include "train/setup.h"

namespace deltatune::cli {
namespace {

// The whole model's keys, as a run on that many devices has them.
Config config_of_all(const Config& config) {
  Config out = config;
  out.recompute = "auto";
  out.max_tokens = config.bench_tokens;
  out.max_length = config.bench_tokens;
  return out;
}

// Throws Error{resource} where even the deepest model that is timed does not fit, before memory is filled.
void check_room(const Config& config, const ModelSource& whole, int64_t layers, const Device& device) {
  ModelSource shallow;
  std::vector<size_t> first(static_cast<size_t>(layers));
  std::iota(first.begin(), first.end(), size_t{0});
  shallow.config = with_layers(whole.config, first);
  shallow.tied = whole.tied;
  shallow.random = true;
  Config least = config_of_all(config);
  least.recompute = "block";
  const uint64_t needs = choose_keep(least, shallow, device.facts(), 1, device.available_bytes()).plan_bytes;
  if (needs <= device.available_bytes()) return;
  throw Error(
      ErrorKind::resource,
      format("{} layers of {} need {}, {} are there", layers, config.bench_model, format_bytes(needs),
             format_bytes(device.available_bytes())),
      format("bench ladder on {}", device.name()),
      "name a smaller model, fewer layers or tokens: on a CPU e.g. --model examples/demo/model --tokens 256");
}

// A model that is shallow enough is measured whole.
std::vector<int64_t> ladder_depths(const Config& config, const ModelConfig& model) {
  const std::vector<int64_t> depths = bench_depths(config, model.layers());
  if (depths.back() == model.layers()) return {model.layers()};
  return depths;
}

// Runs the script; its results, or null and a warning. What it prints goes to stderr.
json::Value rival_rungs(const std::string& script, const Config& config) {
  const fs::path folder = fs::temp_directory_path() / format("deltatune-ladder-{}", ::getpid());
  fs::create_directory(folder);
  const std::string results = (folder / "rivals.json").string();
  std::string depths;
  for (const int64_t depth : ladder_depths(config, bench_model_config(config.bench_model)))
    depths += format("{}{}", depths.empty() ? "" : ",", depth);
  std::vector<std::string> words = {"python3",  script,  "--model",   config.bench_model,
                                    "--depths", depths,  "--tokens",  std::to_string(config.bench_tokens),
                                    "--json",   results, "--devices", std::to_string(config.bench_devices)};
  if (!config.bench_lengths.empty()) words.insert(words.end(), {"--lengths", config.bench_lengths});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, "python3", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (failed == 0) {
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  json::Value out;
  if (failed == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 && fs::exists(results)) {
    out = json::parse(read_file(results), results);
  } else {
    log::warn("no rungs of transformers: {} did not end well; see what it printed", script);
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return out;
}

std::string rival_text(const json::Value& rivals) {
  std::string out = "transformers on the same rows:\n";
  for (const json::Value& rung : rivals.at("rungs").as_array()) {
    const double step = rung.at("step_ms").as_number();
    out += format("{:<28}{:>12}{:>19.1f}{:>12.2f} h{:>9.0f}\n", rung.at("rung").as_string(),
                  format_count(rung.at("steps").as_integer()), step, rung.at("hours").as_number(),
                  rung.at("tokens_per_s_per_device").as_number());
  }
  return out;
}

}  // namespace

int verb_bench_ladder(const Invocation& call) {
  const Config& config = call.config();
  check_result_file(config.bench_json, "--json");
  check_result_file(config.bench_svg, "--svg");
  if (!config.bench_rivals.empty() && !fs::exists(config.bench_rivals)) {
    throw Error(ErrorKind::usage, "there is no " + config.bench_rivals, "--rivals",
                "name bench/rivals/ladder.py of the sources");
  }
  LadderOptions options;
  options.step.model = bench_model_config(config.bench_model);
  options.step.model_name = config.bench_model;
  options.step.depths = ladder_depths(config, options.step.model);
  options.step.tokens = config.bench_tokens;
  options.lengths = bench_lengths(config.bench_lengths, config.bench_tokens);
  options.step.storage = storage_dtype(config);
  options.step.optimizer = bench_optimizer(config);
  options.step.tune_matmuls = config.matmul_tuning == "auto";
  options.step.cache_folder = program_cache().string();
  options.step.timed_seconds = 2;
  options.devices = static_cast<int>(config.bench_devices);
  const auto device = open_device(config);
  options.step.peak_tflop_s = peak_of(*device);
  if (device->target() == Target::cuda) options.step.pci_bus_id = gpu_identity(*device).pci_bus_id;
  std::string why;
  if (const CudaPlugin* plugin = device->target() == Target::cuda ? cuda_plugin(why) : nullptr)
    options.step.tracer = plugin->activity;

  ModelSource whole;
  whole.config = options.step.model;
  whole.tied = options.step.model.tie_word_embeddings;
  whole.random = true;
  check_room(config, whole, options.step.depths.back(), *device);
  const KeepChoice choice =
      choose_keep(config_of_all(config), whole, device->facts(), options.devices, device->available_bytes());
  options.keep_of_all = choice.keep;
  options.keep_description = choice.describe();
  if (choice.plan_bytes > device->available_bytes()) {
    log::warn(
        "the whole model needs {} on each of {} devices, {} are there: its recompute: auto keeps nothing",
        format_bytes(choice.plan_bytes), options.devices, format_bytes(device->available_bytes()));
  }
  const LadderReport report = bench_ladder(*device, options);
  std::string text = report.to_text();
  json::Value out = report.to_json();
  if (!config.bench_rivals.empty()) {
    const json::Value rivals = rival_rungs(config.bench_rivals, config);
    if (rivals.find("rungs") != nullptr) {
      text += rival_text(rivals);
      out.set("rivals", rivals);
    }
  }
  if (!config.bench_svg.empty()) write_file_atomic(config.bench_svg, report.to_svg());
  report_bench(call, *device, text, std::move(out));
  return 0;
}

}  // namespace deltatune::cli
