// One GPU as the driver's management library shows it: NVML, opened at run time, so that the program needs
// neither it nor a GPU.
//
// Every answer is doubted: a call that is missing, not supported or not permitted, and a number that cannot
// be true, leave their field empty. Only reads; clocks, limits and modes are never set. Signatures and
// values: NVIDIA's NVML API reference guide.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace deltatune {

/// What one look at a GPU gave. Absent: not known.
struct GpuSample {
  std::optional<double> utilisation;                        ///< 0 to 1: share of time in which any kernel ran
  std::optional<double> memory_used_gib, memory_total_gib;  ///< of the whole GPU, other processes included
  std::optional<double> sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz;
  std::optional<double> power_w, power_limit_w;
  std::optional<double> temperature_c;
  std::optional<uint64_t> throttle;         ///< bits, see throttle_names
  std::optional<uint64_t> ecc_uncorrected;  ///< since the driver was loaded
  std::optional<uint64_t> nvlink_errors;    ///< likewise, all links and kinds
  std::vector<uint64_t> xids;               ///< critical errors since the last look, at most 16
  bool lost = false;                        ///< the GPU has fallen off the bus: there will be no more samples
};

/// Names of the bits that slow a GPU down: sw_power_cap, hw_slowdown, sync_boost, sw_thermal_slowdown,
/// hw_thermal_slowdown, hw_power_brake_slowdown. Idling and clocks that somebody has chosen are none.
std::vector<std::string> throttle_names(uint64_t bits);

class NvmlGpu {
 public:
  /// The GPU at `pci_bus_id` ("0000:1b:00.0"). `library`: a file, or what the loader finds. nullptr where
  /// there is no such library or GPU; `why` then says which.
  static std::unique_ptr<NvmlGpu> open(const std::string& pci_bus_id, std::string& why,
                                       const std::string& library = "libnvidia-ml.so.1");
  ~NvmlGpu();
  NvmlGpu(const NvmlGpu&) = delete;
  NvmlGpu& operator=(const NvmlGpu&) = delete;

  /// A few calls into the driver, some 100 us; the counters of errors every 25th time only. One thread.
  GpuSample sample();

 private:
  struct Library;
  explicit NvmlGpu(std::unique_ptr<Library> library);
  void look_at_errors(GpuSample& out);

  std::unique_ptr<Library> library_;
  int64_t samples_ = 0;
  bool has_nvlink_ = true;
};

}  // namespace deltatune
