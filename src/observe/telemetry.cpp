// Windows, warnings and the thread.
#include "observe/telemetry.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/counted.h"
#include "base/format.h"

namespace deltatune {
namespace {

constexpr size_t most_xids = 64;

double three_digits(double value) {
  return std::round(value * 1e3) / 1e3;
}

// The number of a member, or `otherwise`.
double number(const json::Value& object, const char* key, double otherwise = 0) {
  const json::Value* found = object.find(key);
  return found != nullptr && found->is_number() ? found->as_number() : otherwise;
}

int64_t count_of(const json::Value& object, const char* key, int64_t otherwise) {
  const double x = number(object, key, static_cast<double>(otherwise));
  return x >= 0 && x < 1e18 ? static_cast<int64_t>(x) : x >= 1e18 ? int64_t{1000000000000000000} : 0;
}

std::string joined(const json::Value* list) {
  std::string out;
  if (list == nullptr || !list->is_array()) return out;
  for (const json::Value& item : list->as_array()) {
    const std::string text = item.is_string() ? item.as_string() : json::dump(item);
    out += (out.empty() ? "" : ", ") + text;
  }
  return out;
}

}  // namespace

void TelemetryWindow::add(const GpuSample& sample) {
  lost_ = lost_ || sample.lost;
  for (const uint64_t xid : sample.xids) {
    if (xids_.size() < most_xids) xids_.push_back(xid);
  }
  ++samples_;
  utilisation_.add(sample.utilisation);
  sm_clock_.add(sample.sm_clock_mhz);
  memory_clock_.add(sample.memory_clock_mhz);
  power_.add(sample.power_w);
  const auto highest = [](std::optional<double>& kept, const std::optional<double>& now) {
    if (now && (!kept || *now > *kept)) kept = now;
  };
  highest(memory_used_, sample.memory_used_gib);
  highest(memory_total_, sample.memory_total_gib);
  highest(temperature_, sample.temperature_c);
  highest(sm_clock_max_, sample.sm_clock_max_mhz);
  if (sample.power_limit_w) power_limit_ = sample.power_limit_w;
  if (sample.ecc_uncorrected) ecc_ = sample.ecc_uncorrected;
  if (sample.nvlink_errors) nvlink_ = sample.nvlink_errors;
  if (!sample.throttle) return;
  ++looked_at_clocks_;
  if (throttle_names(*sample.throttle).empty()) return;
  reasons_ |= *sample.throttle;
  ++throttled_;
  throttled_clock_.add(sample.sm_clock_mhz);
}

double TelemetryWindow::throttled_share() const {
  return looked_at_clocks_ > 0 ? static_cast<double>(throttled_) / static_cast<double>(looked_at_clocks_) : 0;
}

double TelemetryWindow::lost_share() const {
  const std::optional<double> clock = throttled_clock_.mean();
  if (!clock || !sm_clock_max_ || *sm_clock_max_ <= 0) return 0;
  return throttled_share() * std::clamp(1 - *clock / *sm_clock_max_, 0.0, 1.0);
}

json::Value TelemetryWindow::to_json(int index, const std::string& pci_bus_id) const {
  json::Value out;
  out.set("index", int64_t{index});
  out.set("pci_bus_id", pci_bus_id);
  out.set("samples", samples_);
  const auto known = [&](const char* key, const std::optional<double>& value) {
    if (value) out.set(key, three_digits(*value));
  };
  known("utilisation", utilisation_.mean());
  known("memory_used_gib", memory_used_);
  known("memory_total_gib", memory_total_);
  known("sm_clock_mhz", sm_clock_.mean());
  known("sm_clock_max_mhz", sm_clock_max_);
  known("memory_clock_mhz", memory_clock_.mean());
  known("power_w", power_.mean());
  known("power_limit_w", power_limit_);
  known("temperature_c", temperature_);
  if (looked_at_clocks_ > 0) {
    json::Array names;
    for (std::string& name : throttle_names(reasons_)) names.emplace_back(std::move(name));
    out.set("throttle", std::move(names));
    out.set("throttled_share", three_digits(throttled_share()));
    known("throttled_clock_mhz", throttled_clock_.mean());
    out.set("lost_share", three_digits(lost_share()));
  }
  const auto count = [&](const char* key, const std::optional<uint64_t>& value) {
    if (value) out.set(key, static_cast<int64_t>(std::min<uint64_t>(*value, INT64_MAX)));
  };
  count("ecc_uncorrected", ecc_);
  count("nvlink_errors", nvlink_);
  json::Array xids;
  for (const uint64_t xid : xids_)
    xids.emplace_back(static_cast<int64_t>(std::min<uint64_t>(xid, INT64_MAX)));
  out.set("xid", std::move(xids));
  if (lost_) out.set("lost", true);
  return out;
}

std::vector<std::string> HealthCheck::judge(const json::Value& entry, double tokens_per_s) {
  const auto index = static_cast<int64_t>(number(entry, "index"));
  auto known = std::find_if(known_.begin(), known_.end(), [&](const Known& k) { return k.index == index; });
  if (known == known_.end()) known = known_.insert(known_.end(), Known{index});
  const json::Value* bus = entry.find("pci_bus_id");
  const std::string gpu = format("GPU {} ({})", index, bus && bus->is_string() ? bus->as_string() : "?");
  std::vector<std::string> out;
  const double lost = number(entry, "lost_share");
  if (lost >= costly && lost >= known->lost_share + costly) {
    std::string cost = format("costs up to {:.0f} % of its speed", lost * 100);
    // What is made now is what is left of it.
    if (tokens_per_s > 0 && lost < 1) cost += format(", {:.0f} tokens/s", tokens_per_s * lost / (1 - lost));
    out.push_back(format("{}: clocks throttled {:.0f} % of the time ({}), {:.0f} of {:.0f} MHz: {}", gpu,
                         number(entry, "throttled_share") * 100, joined(entry.find("throttle")),
                         number(entry, "throttled_clock_mhz"), number(entry, "sm_clock_max_mhz"), cost));
    known->lost_share = lost;
  }
  const int64_t ecc = count_of(entry, "ecc_uncorrected", known->ecc);
  if (ecc > known->ecc) {
    out.push_back(format(
        "{}: {} (uncorrected, ECC) since the driver was loaded: results may be wrong; reset or replace "
        "the GPU",
        gpu, counted(ecc, "memory error")));
  }
  known->ecc = ecc;
  const int64_t nvlink = count_of(entry, "nvlink_errors", known->nvlink);
  if (nvlink < known->nvlink / 2) known->nvlink = 0;  // counted anew
  // They come one by one for hours on links that run at full rate all the same.
  if (nvlink > 0 && nvlink / 2 >= known->nvlink) {
    out.push_back(format("{}: {} since the driver was loaded: transfers are repeated", gpu,
                         counted(nvlink, "NVLink error")));
    known->nvlink = nvlink;
  }
  const std::string xids = joined(entry.find("xid"));
  if (!xids.empty())
    out.push_back(
        format("{}: critical errors, XID {}: see the kernel log and NVIDIA's list of XIDs", gpu, xids));
  if (entry.find("lost") != nullptr && !known->lost) {
    known->lost = true;
    out.push_back(format("{}: has fallen off the bus; it is not looked at any more", gpu));
  }
  return out;
}

struct Telemetry::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool ended = false;
  std::array<TelemetryWindow, 2> windows;
};

Telemetry::Telemetry(std::function<GpuSample()> look, double per_second) : state_(std::make_shared<State>()) {
  const auto pause = std::chrono::duration<double>(1 / per_second);
  std::thread([state = state_, look = std::move(look), pause]() mutable {
    std::unique_lock lock(state->mutex);
    bool lost = false;
    while (!state->stop && !lost) {
      lock.unlock();
      const GpuSample sample = look();
      lost = sample.lost;
      lock.lock();
      for (TelemetryWindow& window : state->windows) window.add(sample);
      state->changed.wait_for(lock, pause, [&] { return state->stop; });
    }
    lock.unlock();
    look = nullptr;  // what it holds goes in this thread, before the end is told
    lock.lock();
    state->ended = true;
    state->changed.notify_all();
  }).detach();
}

Telemetry::~Telemetry() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, std::chrono::seconds(2), [&] { return state_->ended; });
}

TelemetryWindow Telemetry::take(int window) {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->windows.at(static_cast<size_t>(window)), {});
}

}  // namespace deltatune
