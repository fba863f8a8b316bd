// Config to engine options.
#include "train/setup.h"

#include <algorithm>
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

void check_memory_keys(const Config& config) {
  const auto refuse = [](std::string what, const char* where, const char* fix) {
    throw Error(ErrorKind::usage, std::move(what), where, fix);
  };
  moments_dtype(config);
  const bool whole =
      config.shard == "none" && std::max<int64_t>(config.world_size, config.nproc * config.nodes) > 1;
  if (whole && config.offload_optimizer) {
    refuse(
        "shard: none keeps all moments on every device, offload_optimizer would put every rank's copy of "
        "them "
        "on the host",
        "shard, offload_optimizer", "use shard: grads or full, which cut them; or offload_optimizer: false");
  }
  if (whole && config.reduce_dtype == "bf16") {
    refuse("shard: none adds up whole gradients in f32, in place", "shard, reduce_dtype",
           "use reduce_dtype: f32; or shard: grads or full");
  }
  if (!config.gradient_release) return;
  if (config.gradient_accumulation_steps > 1) {
    refuse(format("gradient_release updates a block as soon as it has its gradient and keeps none, "
                  "gradient_accumulation_steps: {} would have to add to it",
                  config.gradient_accumulation_steps),
           "gradient_release, gradient_accumulation_steps",
           "set gradient_accumulation_steps: 1, or gradient_release: false");
  }
  if (config.max_grad_norm > 0) {
    refuse(format("gradient_release updates a block before the norm of the whole gradient is known, "
                  "max_grad_norm: {} cannot be kept to",
                  config.max_grad_norm),
           "gradient_release, max_grad_norm", "set max_grad_norm: 0, or gradient_release: false");
  }
}

}  // namespace

DType storage_dtype(const Config& config) {
  return config.dtype == "f32" ? DType::f32 : DType::bf16;
}

DType moments_dtype(const Config& config) {
  if (config.optim == "adamw_8bit") {
    if (config.optim_dtype != "f32") {
      throw Error(ErrorKind::usage,
                  "optim: adamw_8bit keeps the moments in 8 bits, there is no other dtype for them",
                  "optim, optim_dtype", "leave out optim_dtype");
    }
    return DType::u8;
  }
  return config.optim_dtype == "bf16" ? DType::bf16 : DType::f32;
}

Rounding weight_rounding(const Config& config) {
  return config.weight_rounding == "stochastic" ? Rounding::stochastic : Rounding::nearest;
}

GraphMode graph_mode(const Config& config) {
  if (config.cuda_graph == "true") return GraphMode::always;
  return config.cuda_graph == "false" ? GraphMode::never : GraphMode::automatic;
}

void check_engine_keys(const Config& config, bool train) {
  if (graph_mode(config) == GraphMode::always && config.device == "cpu") {
    throw Error(ErrorKind::usage, "a CPU has no CUDA graphs", "cuda_graph: true", "use cuda_graph: auto");
  }
  if (config.reduce_dtype == "bf16" && storage_dtype(config) != DType::bf16) {
    throw Error(ErrorKind::usage, "gradients of f32 weights are not reduced in bf16", "reduce_dtype: bf16",
                "use reduce_dtype: f32, or dtype: bf16");
  }
  if (train) check_memory_keys(config);
}

EngineOptions engine_options(const Config& config, Keep keep, bool train) {
  check_engine_keys(config, train);
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
  out.whole_weights = config.shard == "grads";
  out.whole_states = config.shard == "none";
  out.ranks_per_machine = config.world_size > 1 ? config.local_world_size : static_cast<int>(config.nproc);
  if (config.reduce_dtype == "bf16") out.reduce = DType::bf16;
  out.adamw.beta1 = static_cast<float>(config.adam_beta1);
  out.adamw.beta2 = static_cast<float>(config.adam_beta2);
  out.adamw.eps = static_cast<float>(config.adam_epsilon);
  out.adamw.rounding = weight_rounding(config);
  out.adamw.seed = static_cast<uint64_t>(config.seed);
  out.moments.dtype = moments_dtype(config);
  out.moments.offload = config.offload_optimizer;
  out.gradient_release = train && config.gradient_release;
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
