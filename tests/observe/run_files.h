// Output folders for tests: the files that a run leaves, made up.
#pragma once

#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>

#include "base/format.h"
#include "base/json.h"
#include "cli/run_binary.h"

namespace deltatune {

/// What is in the folder besides metrics.jsonl.
struct RunFiles {
  int64_t steps = 200;
  int64_t devices = 2;  ///< in telemetry; 0: none
  bool profile = true;
  bool before = false;  ///< an earlier profile beside it
  double speed = 1;     ///< 2: steps take half the time
  std::string run_name = "a run";
};

/// One step event as `train` writes it.
inline std::string step_text(int64_t i, int64_t steps, double speed = 1) {
  const auto x = static_cast<double>(i);
  const double loss = 1 + 4 * std::exp(-x / 40) + 0.05 * std::sin(x);
  const double time = (0.8 + 0.05 * std::cos(x / 7)) / speed;
  return format(
      R"({{"event": "step", "step": {}, "epoch": {:.4f}, "loss": {:.6f}, "grad_norm": {:.5f}, "learning_rate": {:.4g}, )"
      R"("tokens": 8192, "real_tokens": 7900, "target_tokens": 5100, "fill": 0.9644, "time_s": {:.5f}, )"
      R"("tokens_per_s": {:.1f}, "mfu": {:.4f}, "gpu_utilisation": 0.98, "roofline_share": 0.7, "exposed_comm_s": 0.05, )"
      R"("data_wait_s": 0.01, "host_bound_share": 0.04, "mem_peak_gib": 71.2, "ts": "2026-11-30T10:22:{:02d}.311Z"}})",
      i, x / static_cast<double>(steps), loss, 1 / (1 + x / 10),
      1e-4 * (1 - x / static_cast<double>(steps + 1)), time, 7900 / time, 0.4 * speed, i % 60);
}

inline std::string telemetry_text(int64_t i, int64_t devices) {
  std::string list;
  for (int64_t d = 0; d < devices; ++d) {
    list += format(
        R"({}{{"index": {}, "utilisation": 0.98, "memory_used_gib": {:.1f}, "sm_clock_mhz": {}, "sm_clock_max_mhz": 1980, )"
        R"("power_w": {}, "power_limit_w": 700, "temperature_c": {}, "throttle": [{}], "throttled_share": {}, )"
        R"("ecc_uncorrected": 0, "xid": [], "nvlink_errors": 0}})",
        d == 0 ? "" : ", ", d, 70 + 0.1 * static_cast<double>(d), 1900 - 20 * d - i % 5, 600 + i % 40, 60 + d,
        d == 1 ? "\"sw_power_cap\"" : "", d == 1 ? 0.2 : 0.0);
  }
  return format(R"({{"event": "telemetry", "step": {}, "devices": [{}], "ts": "2026-11-30T10:22:07.311Z"}})",
                i, list);
}

inline std::string profile_text(double scale) {
  std::string ops;
  const auto op = [&](const char* name, const char* phase, double ms, const char* kernel, bool slow) {
    ops += format(
        R"({}{{"op": "{}", "shape": "8192x5120", "phase": "{}", "kernel": "{}", "slow": {}, "calls": 48, "host_us": 4.1, )"
        R"("device_us": {:.3f}, "device_ms": {:.3f}, "bytes": 1e9, "flops": 1e12, "gb_s": 900, "tflop_s": 600, "roofline": 0.8}})",
        ops.empty() ? "" : ", ", name, phase, kernel, slow, ms * scale * 1000 / 48, ms * scale);
  };
  op("matmul", "forward", 200, "cublaslt", false);
  op("matmul", "backward", 350, "cublaslt", false);
  op("gated_delta_forward", "forward", 40, "plain", true);
  op("swiglu_backward", "backward", 22, "fused", false);
  return format(
      R"({{"format": 1, "device": "NVIDIA H200", "rank": 0, "world": 1, "steps": 1, "step_ms": {}, "busy_ms": {}, "idle_ms": 12, )"
      R"("launches": 310, "kernels": 4060, "graph": true, "overhead": {{"off_ms": 630, "on_ms": 640}}, "ops": [{}], "kernel_names": [], )"
      R"("gaps": [{{"after": "a", "before": "b", "us": 12.5, "at_us": 3, "host": "launching"}}], "unnamed_ms": 3.5, )"
      R"("communication": {{"gather_ms": 5, "reduce_ms": 6, "exposed_ms": 1}}, "data_wait_ms": 0.1, "host_bound_ms": 8}})",
      640 * scale, 620 * scale, ops);
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline void write_run(const std::filesystem::path& folder, const RunFiles& files = {}) {
  std::filesystem::create_directories(folder);
  write_text(
      folder / "run.json",
      format(
          R"({{"run_name": "{}", "version": "0.1.0", "machine": {{"host": "h", "cores": 2}}, "total_steps": {}, )"
          R"("recompute": "block", "plan": {{"total_bytes": 7000000000, "available_bytes": 150000000000, "regions": )"
          R"([{{"name": "weights bf16", "lifetime": "run", "bytes": 4000000000}}, )"
          R"({{"name": "Adam m f32", "lifetime": "run", "bytes": 3000000000}}]}}, )"
          R"("data": {{"conversations": 1000, "truncated": 3, "tokens": 812345, "histogram": [[64, 10], [128, 500], [256, 490]]}}, )"
          R"("exit": {{"state": "done", "code": 0}}}})",
          files.run_name, files.steps));
  write_text(folder / "config.resolved.yaml",
             format("# group\nlearning_rate: {} # flag --lr\nmax_tokens: 8192   # file cfg.yaml:3\ndataset: "
                    "[\"a # b\"] # file cfg.yaml:4\nseed: 42 # default\n",
                    1e-4 * files.speed));
  if (files.profile) write_text(folder / "profile.json", profile_text(1 / files.speed));
  if (files.before) write_text(folder / "profile-before.json", profile_text(2));
  std::ofstream out(folder / "metrics.jsonl", std::ios::binary);
  out << R"({"event": "start", "step": 0, "total_steps": )" << files.steps << "}\n";
  for (int64_t i = 1; i <= files.steps; ++i) {
    out << step_text(i, files.steps, files.speed) << "\n";
    if (files.devices > 0 && i % 10 == 0) out << telemetry_text(i, files.devices) << "\n";
    if (i % 20 == 0)
      out << format(R"({{"event": "eval", "step": {}, "eval_loss": {:.4f}}})", i,
                    1.2 + 4 * std::exp(-static_cast<double>(i) / 40))
          << "\n";
  }
}

}  // namespace deltatune
