// The calls.
#include "observe/nvml.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace deltatune {
namespace {

// NVML's types, as far as they are needed.
using Code = int;
using Handle = void*;
struct Utilisation {
  unsigned gpu, memory;  // percent
};
struct Memory {
  unsigned long long total, free, used;
};
struct EventData {
  Handle device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

constexpr Code success = 0;
constexpr Code not_supported = 3;
constexpr Code gpu_is_lost = 15;
constexpr int clock_sm = 1;
constexpr int clock_memory = 2;
constexpr int sensor_gpu = 0;
constexpr int ecc_uncorrected = 1;
constexpr int ecc_volatile = 0;
constexpr unsigned nvlink_links = 18;
constexpr int nvlink_counters = 4;
constexpr unsigned long long event_xid = 8;
constexpr int errors_every = 25;

struct Reason {
  uint64_t bit;
  const char* name;
};
constexpr std::array<Reason, 6> reasons = {{{0x4, "sw_power_cap"},
                                            {0x8, "hw_slowdown"},
                                            {0x10, "sync_boost"},
                                            {0x20, "sw_thermal_slowdown"},
                                            {0x40, "hw_thermal_slowdown"},
                                            {0x80, "hw_power_brake_slowdown"}}};

// A value that can be true, else nothing.
std::optional<double> believable(double value, double most) {
  return value >= 0 && value <= most ? std::optional<double>(value) : std::nullopt;
}

}  // namespace

std::vector<std::string> throttle_names(uint64_t bits) {
  std::vector<std::string> names;
  for (const Reason& reason : reasons) {
    if ((bits & reason.bit) != 0) names.emplace_back(reason.name);
  }
  return names;
}

struct NvmlGpu::Library {
  void* file = nullptr;
  bool started = false;
  Handle device = nullptr;
  Handle events = nullptr;
  bool lost = false;

  Code (*init)() = nullptr;
  Code (*shutdown)() = nullptr;
  const char* (*error_string)(Code) = nullptr;
  Code (*handle_by_bus)(const char*, Handle*) = nullptr;
  Code (*utilisation)(Handle, Utilisation*) = nullptr;
  Code (*memory)(Handle, Memory*) = nullptr;
  Code (*clock)(Handle, int, unsigned*) = nullptr;
  Code (*max_clock)(Handle, int, unsigned*) = nullptr;
  Code (*throttle)(Handle, unsigned long long*) = nullptr;
  Code (*power)(Handle, unsigned*) = nullptr;
  Code (*power_limit)(Handle, unsigned*) = nullptr;
  Code (*temperature)(Handle, int, unsigned*) = nullptr;
  Code (*ecc)(Handle, int, int, unsigned long long*) = nullptr;
  Code (*nvlink)(Handle, unsigned, int, unsigned long long*) = nullptr;
  Code (*make_events)(Handle*) = nullptr;
  Code (*register_events)(Handle, unsigned long long, Handle) = nullptr;
  Code (*wait_events)(Handle, EventData*, unsigned) = nullptr;
  Code (*free_events)(Handle) = nullptr;

  template <class F>
  void find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(::dlsym(file, name));
  }
  void find_all() {
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(error_string, "nvmlErrorString");
    find(handle_by_bus, "nvmlDeviceGetHandleByPciBusId_v2");
    find(utilisation, "nvmlDeviceGetUtilizationRates");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(clock, "nvmlDeviceGetClockInfo");
    find(max_clock, "nvmlDeviceGetMaxClockInfo");
    find(throttle, "nvmlDeviceGetCurrentClocksEventReasons");
    if (throttle == nullptr) find(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(power, "nvmlDeviceGetPowerUsage");
    find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(temperature, "nvmlDeviceGetTemperature");
    find(ecc, "nvmlDeviceGetTotalEccErrors");
    find(nvlink, "nvmlDeviceGetNvLinkErrorCounter");
    find(make_events, "nvmlEventSetCreate");
    find(register_events, "nvmlDeviceRegisterEvents");
    find(wait_events, "nvmlEventSetWait_v2");
    find(free_events, "nvmlEventSetFree");
  }
  std::string text(Code code) const {
    const char* said = error_string != nullptr ? error_string(code) : nullptr;
    return said != nullptr ? said : "error " + std::to_string(code);
  }
  // Whether the call is there and its result is good.
  template <class F, class... A>
  bool ask(F* function, A... arguments) {
    if (function == nullptr || lost) return false;
    const Code code = function(arguments...);
    lost = lost || code == gpu_is_lost;
    return code == success;
  }
  void listen() {
    if (make_events == nullptr || register_events == nullptr || wait_events == nullptr) return;
    if (make_events(&events) != success) events = nullptr;
    if (events != nullptr && register_events(device, event_xid, events) != success) {
      if (free_events != nullptr) free_events(events);
      events = nullptr;
    }
  }
  ~Library() {
    if (events != nullptr && free_events != nullptr) free_events(events);
    if (started && shutdown != nullptr) shutdown();
    if (file != nullptr) ::dlclose(file);
  }
};

NvmlGpu::NvmlGpu(std::unique_ptr<Library> library) : library_(std::move(library)) {}
NvmlGpu::~NvmlGpu() = default;

std::unique_ptr<NvmlGpu> NvmlGpu::open(const std::string& pci_bus_id, std::string& why,
                                       const std::string& library) {
  auto opened = std::make_unique<Library>();
  opened->file = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened->file == nullptr) {
    const char* said = ::dlerror();
    why = said != nullptr ? said : library + " cannot be opened";
    return nullptr;
  }
  opened->find_all();
  if (opened->init == nullptr || opened->handle_by_bus == nullptr) {
    why = library + " is no NVML";
    return nullptr;
  }
  Code code = opened->init();
  opened->started = code == success;
  if (code == success) code = opened->handle_by_bus(pci_bus_id.c_str(), &opened->device);
  if (code != success) {
    why = opened->text(code) + " (GPU at " + pci_bus_id + ")";
    return nullptr;
  }
  opened->listen();
  return std::unique_ptr<NvmlGpu>(new NvmlGpu(std::move(opened)));
}

GpuSample NvmlGpu::sample() {
  GpuSample out;
  Library& nvml = *library_;
  const Handle gpu = nvml.device;
  Utilisation share{};
  if (nvml.ask(nvml.utilisation, gpu, &share)) out.utilisation = believable(share.gpu / 100.0, 1);
  Memory memory{};
  if (nvml.ask(nvml.memory, gpu, &memory) && memory.used <= memory.total) {
    out.memory_used_gib = believable(static_cast<double>(memory.used) / double(1 << 30), 1e6);
    out.memory_total_gib = believable(static_cast<double>(memory.total) / double(1 << 30), 1e6);
  }
  const auto number = [&](auto* function, double unit, double most, auto... arguments) {
    unsigned value = 0;
    return nvml.ask(function, gpu, arguments..., &value) ? believable(value * unit, most) : std::nullopt;
  };
  out.sm_clock_mhz = number(nvml.clock, 1, 1e5, clock_sm);
  out.sm_clock_max_mhz = number(nvml.max_clock, 1, 1e5, clock_sm);
  out.memory_clock_mhz = number(nvml.clock, 1, 1e5, clock_memory);
  out.power_w = number(nvml.power, 1e-3, 1e5);
  out.power_limit_w = number(nvml.power_limit, 1e-3, 1e5);
  out.temperature_c = number(nvml.temperature, 1, 500, sensor_gpu);
  unsigned long long bits = 0;
  if (nvml.ask(nvml.throttle, gpu, &bits)) out.throttle = bits;
  if (samples_++ % errors_every == 0) look_at_errors(out);
  EventData event{};
  while (nvml.events != nullptr && out.xids.size() < 16 &&
         nvml.ask(nvml.wait_events, nvml.events, &event, 0u))
    if ((event.type & event_xid) != 0) out.xids.push_back(event.data);
  out.lost = nvml.lost;
  return out;
}

void NvmlGpu::look_at_errors(GpuSample& out) {
  Library& nvml = *library_;
  unsigned long long count = 0;
  if (nvml.ask(nvml.ecc, nvml.device, ecc_uncorrected, ecc_volatile, &count)) out.ecc_uncorrected = count;
  if (!has_nvlink_ || nvml.nvlink == nullptr || nvml.lost) return;
  uint64_t errors = 0;
  bool any = false;
  for (unsigned link = 0; link < nvlink_links; ++link) {
    for (int counter = 0; counter < nvlink_counters; ++counter) {
      const Code code = nvml.nvlink(nvml.device, link, counter, &count);
      nvml.lost = nvml.lost || code == gpu_is_lost;
      if (code == not_supported && link == 0) {
        has_nvlink_ = false;
        return;
      }
      if (code != success) continue;  // a link that is not there
      any = true;
      errors += count;
    }
  }
  if (any) out.nvlink_errors = errors;
}

}  // namespace deltatune
