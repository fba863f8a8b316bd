// The table of kernels, and the stop before a slow run.
#include "train/kernel_report.h"

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"

namespace deltatune {
namespace {

template <class F>
void each_used(const KernelSelection& selection, F&& f) {
  for (size_t i = 0; i < selection.ops.size(); ++i) {
    if (selection.ops[i].used) f(name_of(static_cast<Op>(i)), selection.ops[i]);
  }
}

}  // namespace

std::string kernel_table(const KernelSelection& selection) {
  const KernelRequest& request = selection.request;
  std::string out =
      format("kernels for {} on sm_{}, cuDNN {}{}:", name_of(request.storage), request.device.sm,
             request.device.cudnn == 0 ? "none" : std::to_string(request.device.cudnn),
             request.deterministic ? ", deterministic" : "");
  each_used(selection, [&](const char* op, const SelectedKernel& chosen) {
    out += format("\n  {:<24} {:<10} {:<5} {}", op, short_name(*chosen.kernel), chosen.slow() ? "slow" : "",
                  chosen.refused.empty() ? "" : "not " + chosen.refused);
    out.erase(out.find_last_not_of(' ') + 1);
  });
  return out;
}

json::Value kernels_json(const KernelSelection& selection) {
  json::Value out{json::Object{}};
  each_used(selection, [&](const char* op, const SelectedKernel& chosen) {
    out.set(op, short_name(*chosen.kernel) + (chosen.slow() ? ", slow" : "") +
                    (chosen.refused.empty() ? "" : " (not " + chosen.refused + ")"));
  });
  return out;
}

void refuse_slow_kernels(const KernelSelection& selection, bool allowed) {
  if (allowed || !selection.slow()) return;
  std::string ops;
  std::string reasons;
  each_used(selection, [&](const char* op, const SelectedKernel& chosen) {
    if (!chosen.slow()) return;
    ops += (ops.empty() ? "" : ", ") + std::string(op);
    if (!chosen.refused.empty()) reasons += (reasons.empty() ? "" : "; ") + chosen.refused;
  });
  throw Error(
      ErrorKind::usage, "these operations would run on plain, slow kernels: " + ops,
      format("{} on sm_{}{}", name_of(selection.request.storage), selection.request.device.sm,
             reasons.empty() ? "" : ": " + reasons),
      "set allow_slow_kernels: true to run all the same (every log line then says so), or dtype: bf16 "
      "where it is f32");
}

void begin_with_kernels(const KernelSelection& selection, bool slow_allowed) {
  if (selection.request.device.target != Target::cuda) return;
  refuse_slow_kernels(selection, slow_allowed);
  if (selection.slow()) log::set_mark(slow_mark);
  log::info("{}", kernel_table(selection));
}

void report_tuning(const MatmulTuning& tuning, bool slow_allowed) {
  for (const std::string& warning : tuning.warnings) log::warn("{}", warning);
  if (!tuning.plain.empty()) {
    std::string shapes;
    for (const std::string& shape : tuning.plain) shapes += (shapes.empty() ? "" : "; ") + shape;
    if (!slow_allowed) {
      throw Error(ErrorKind::usage, "cuBLASLt has no algorithm for some matrix products of this model",
                  "layout, dtypes, m, n, k, alignments: " + shapes,
                  "set allow_slow_kernels: true to let the plain kernel serve them");
    }
    log::set_mark(slow_mark);
    log::warn("the plain kernel serves matrix products that cuBLASLt refuses: {}", shapes);
  }
  if (!tuning.time) {
    log::info("matmul: {}, the library's first suggestion each (matmul_tuning: off)",
              counted(tuning.shapes, "shape"));
    return;
  }
  std::string timed;
  if (tuning.timed > 0) {
    timed = format(
        "; {} timed in {:.1f} s: {:.1f} us for one of each with the first suggestions, {:.1f} us "
        "with the chosen ones",
        tuning.timed, tuning.seconds, tuning.first_us, tuning.chosen_us);
  }
  log::info("matmul: {}, {} as stored{}", counted(tuning.shapes, "shape"), tuning.stored, timed);
}

}  // namespace deltatune
