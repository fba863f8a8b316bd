// bench op: every op of a training step at a model's shapes, one by one, against what the machine can do.
//
// One layer of each kind is run for real (forward, backward, update), so that every op sees the values it
// sees in training; then its calls are replayed in the order of the step and each distinct (op, shape) is
// timed where it stands, on a GPU with cold caches. Share of the roofline: the larger of bytes / copy rate
// and FLOPs / GEMM rate, both measured in the same process, divided by the time. Bytes count each tensor
// once, FLOPs are those of the op's formula (ops/*.cpp). What is not here: the time between kernels, and how
// often a step calls each (`plan`).
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "model/config.h"
#include "train/bench_model.h"
#include "train/bench_timer.h"

namespace deltatune {

struct BenchOpOptions {
  ModelConfig model;  ///< any number of layers; the first of each kind is used
  std::string model_name;
  int64_t tokens = 8192;
  std::vector<int32_t> lengths;
  DType storage = DType::bf16;
  BenchOptimizer optimizer;
  std::string glob = "*";  ///< of op names, with * and ?
  std::string kernel;      ///< time only this kernel of each op ("plain"); empty: the selected ones
  bool deterministic = false;
  bool allow_slow_kernels = false;
  bool tune_matmuls = true;
  std::string cache_folder;
};

struct BenchOpRow {
  std::string op, kernel, shape;
  bool slow = false;
  double us = 0;
  double bytes = 0, flops = 0;  ///< of one call
  double share = 0;             ///< of the roofline, 0 to 1
  double cublas_us = 0;         ///< matmul by another kernel: the time of cuBLASLt; 0: not measured
  int64_t calls = 0;            ///< in the step of these layers
  double gb_s() const { return bytes / us * 1e-3; }
  double tflop_s() const { return flops / us * 1e-6; }
};

struct BenchOpReport {
  std::string device, model;
  std::string dtype;
  std::string optimizer;  ///< what it keeps, in words
  int64_t tokens = 0;
  int64_t documents = 0;
  MachineRates rates;
  std::vector<BenchOpRow> rows;  ///< in the order of the step
  json::Value to_json() const;
  std::string to_text() const;
};

/// Throws Error{usage} where nothing matches, or where a slow kernel would be timed that was not asked for.
BenchOpReport bench_ops(Device& device, const BenchOpOptions& options);

/// True when `text` matches `glob`: * any characters, ? one.
bool glob_match(std::string_view glob, std::string_view text);

}  // namespace deltatune
