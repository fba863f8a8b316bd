// Config to engine options.
#include "train/setup.h"

#include <map>

#include "base/error.h"
#include "base/format.h"
#include "io/model_path.h"
#include "train/run_data.h"

namespace deltatune {
namespace {

// "layers.3.input_norm" -> "input_norm": what kind of parameter it is.
std::string kind_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

}  // namespace

DType storage_dtype(const Config& config) {
  return config.dtype == "f32" ? DType::f32 : DType::bf16;
}

DType moments_dtype(const Config& config) {
  return config.optim_dtype == "bf16" ? DType::bf16 : DType::f32;
}

Rounding weight_rounding(const Config& config) {
  return config.weight_rounding == "stochastic" ? Rounding::stochastic : Rounding::nearest;
}

GraphMode graph_mode(const Config& config) {
  if (config.cuda_graph == "true") return GraphMode::always;
  return config.cuda_graph == "false" ? GraphMode::never : GraphMode::automatic;
}

EngineOptions engine_options(const Config& config, Keep keep, bool train) {
  if (graph_mode(config) == GraphMode::always && config.device == "cpu") {
    throw Error(ErrorKind::usage, "a CPU has no CUDA graphs", "cuda_graph: true", "use cuda_graph: auto");
  }
  EngineOptions out;
  out.storage = storage_dtype(config);
  out.tokens = config.max_tokens;
  out.max_documents = max_segments(config);
  out.keep = keep;
  out.train = train;
  out.deterministic = config.deterministic;
  out.allow_slow_kernels = config.allow_slow_kernels;
  out.tune_matmuls = config.matmul_tuning == "auto";
  out.cache_folder = program_cache().string();
  out.adamw.beta1 = static_cast<float>(config.adam_beta1);
  out.adamw.beta2 = static_cast<float>(config.adam_beta2);
  out.adamw.eps = static_cast<float>(config.adam_epsilon);
  out.adamw.rounding = weight_rounding(config);
  out.adamw.seed = static_cast<uint64_t>(config.seed);
  out.moments = moments_dtype(config);
  out.master_weights = config.master_weights;
  out.weight_decay = static_cast<float>(config.weight_decay);
  out.max_grad_norm = static_cast<float>(config.max_grad_norm);
  // Only training captures; evaluation may have kernels that no graph can hold.
  out.graph = train ? graph_mode(config) : GraphMode::never;
  return out;
}

std::string describe_decay(const ParamTable& table, double weight_decay) {
  if (weight_decay == 0) return "weight decay is 0";
  std::map<std::string, int> exempt;
  for (const Param& param : table.params) {
    if (!param.decay) ++exempt[kind_of(param.name)];
  }
  std::string list;
  for (const auto& [kind, count] : exempt) list += format("{}{} ({})", list.empty() ? "" : ", ", kind, count);
  return format("weight decay {} on all parameters but {}", weight_decay, list);
}

}  // namespace deltatune
