// What the bench verbs share: what is measured, results as a file with what a figure needs beside itself.
#pragma once

#include <string>

#include "base/json.h"
#include "cli/verbs.h"
#include "tensor/device.h"
#include "train/bench_model.h"

namespace deltatune::cli {

/// Before minutes are spent: throws Error{usage} naming `flag` where `file` (empty: none) cannot be written.
void check_result_file(const std::string& file, const char* flag);

/// `text` to stdout, and `report` with machine, driver, libraries, commit and command to --json.
void report_bench(const Invocation& call, const Device& device, const std::string& text, json::Value report);

/// --depths, or half of --layers and --layers, of which the model may have fewer.
std::vector<int64_t> bench_depths(const Config& config, int64_t model_layers);

/// optim, optim_dtype, master_weights, weight_rounding. Throws Error{usage} where they contradict each other.
BenchOptimizer bench_optimizer(const Config& config);

/// Dense bf16 peak of the GPU that is used, where its card is known; 0: none. TFLOP/s.
double peak_of(const Device& device);

}  // namespace deltatune::cli
