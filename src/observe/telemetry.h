// Telemetry: a GPU looked at a few times a second in the background, summed up for metrics, and judged.
//
// A look that hangs in a broken driver holds nobody up: the end waits for it two seconds and leaves it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "observe/nvml.h"

namespace deltatune {

/// Samples of one GPU over some time.
class TelemetryWindow {
 public:
  void add(const GpuSample& sample);
  int64_t samples() const { return samples_; }
  std::optional<double> utilisation() const { return utilisation_.mean(); }
  /// Share of the samples in which a reason slowed the clocks down.
  double throttled_share() const;
  /// What that cost, as a share of the GPU's speed: throttled share x (1 - SM clock in it / highest SM
  /// clock). Speed follows the clock where the GPU computes, so it is an upper bound.
  double lost_share() const;
  /// An entry of the telemetry event's "devices" (docs/metrics.md): means, the highest temperature and
  /// memory, the latest error counts. Only what is known.
  json::Value to_json(int index, const std::string& pci_bus_id) const;

 private:
  struct Mean {
    double sum = 0;
    int64_t count = 0;
    void add(const std::optional<double>& value) {
      if (!value) return;
      sum += *value;
      ++count;
    }
    std::optional<double> mean() const {
      return count > 0 ? std::optional<double>(sum / static_cast<double>(count)) : std::nullopt;
    }
  };
  int64_t samples_ = 0, looked_at_clocks_ = 0, throttled_ = 0;
  Mean utilisation_, sm_clock_, memory_clock_, power_, throttled_clock_;
  std::optional<double> memory_used_, memory_total_, sm_clock_max_, power_limit_, temperature_;
  std::optional<uint64_t> ecc_, nvlink_;
  uint64_t reasons_ = 0;
  std::vector<uint64_t> xids_;
  bool lost_ = false;
};

/// Judges entries of "devices" as they come, of any number of GPUs: each trouble is told once, and again when
/// it is worse.
class HealthCheck {
 public:
  /// Below this share of lost speed a throttled clock is no trouble.
  static constexpr double costly = 0.05;
  /// Warnings for the next entry of the GPU `entry.index`. tokens_per_s: what the run makes on one device; 0:
  /// not known.
  std::vector<std::string> judge(const json::Value& entry, double tokens_per_s);

 private:
  struct Known {
    int64_t index = 0;
    double lost_share = 0;  ///< as told
    int64_t ecc = 0;
    int64_t nvlink = 0;  ///< as told
    bool lost = false;
  };
  std::vector<Known> known_;
};

class Telemetry {
 public:
  /// Calls `look` from a thread of its own, `per_second` times a second, until a sample says that the GPU is
  /// lost or this object goes.
  Telemetry(std::function<GpuSample()> look, double per_second = 5);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  /// Samples since the last call; a second window has its own last call, for whoever asks at other times.
  TelemetryWindow take(int window = 0);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace deltatune
