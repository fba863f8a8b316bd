// Which kernel serves which op, told to the user: the table at the start of a run, its form in run.json, and
// the refusal of slow kernels that nobody asked for.
#pragma once

#include <string>

#include "base/json.h"
#include "ops/kernel_list.h"
#include "ops/matmul_tuning.h"

namespace deltatune {

/// The word that every log line, metrics line and bench result of a run on plain kernels carries.
inline constexpr const char* slow_mark = "slow kernels";

/// One line per op that the model calls: op, kernel, "slow" where it is the plain one, and why each better
/// kernel was refused.
std::string kernel_table(const KernelSelection&);

/// {"op": "kernel"}, with the reason in brackets where a better one was refused; ops that are called only.
json::Value kernels_json(const KernelSelection&);

/// Throws Error{usage} where an op that the model calls would run on a plain kernel and `allowed` is false.
void refuse_slow_kernels(const KernelSelection&, bool allowed);

/// What an engine does with its selection before it allocates, on a machine where kernels differ (CUDA):
/// refuse_slow_kernels, the table as a log line, and from then on the mark on log lines where it applies.
void begin_with_kernels(const KernelSelection&, bool slow_allowed);

/// One log line about the tuning of matrix products, and its warnings. Throws Error{usage} where the library
/// refuses a shape, so that the plain kernel would serve it, and `slow_allowed` is false.
void report_tuning(const MatmulTuning&, bool slow_allowed);

}  // namespace deltatune
