// RunRecord: what the events of metrics.jsonl tell about a run, in bounded memory.
//
// Curves are thinned (series.h), the last steps are kept one by one, messages and saves up to a number.
// Events come from a file that anybody may have written: unknown events and members are passed over, a step
// that is no number from 0 to 1e12 is none, texts are cut. Not done here: reading the file (metrics_tail.h),
// showing it (report.h), judging it (src/advise).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "observe/series.h"

namespace deltatune {

/// One logged step. NaN: not in the event. Seconds are of the step, not of the interval since the last event.
struct StepFacts {
  double step = 0;
  double loss = 0, grad_norm = 0, learning_rate = 0;
  double time_s = 0;
  double slots = 0, real_tokens = 0, targets = 0;  ///< of all ranks
  double fill = 0;                                 ///< real tokens / slots
  /// Sums over all steps since the event before; 1 step and its own figures where the event has none.
  double interval_steps = 0, interval_slots = 0, interval_real_tokens = 0;
  double data_wait_s = 0, exposed_comm_s = 0;
  double host_bound_share = 0;  ///< of time_s: the device went at the pace of the host's launches
  double mfu = 0, roofline_share = 0, gpu_utilisation = 0;  ///< 0 to 1
  double mem_peak_gib = 0;
};

/// Telemetry of one device: curves, and sums over the events.
struct DeviceRecord {
  static constexpr std::array<const char*, 7> names = {"utilisation", "memory_used_gib", "sm_clock_mhz",
                                                       "power_w",     "temperature_c",   "throttled_share",
                                                       "lost_share"};
  std::array<Series, 7> curves = {Series(400), Series(400), Series(400), Series(400),
                                  Series(400), Series(400), Series(400)};
  std::array<double, 7> sums{};
  std::array<int64_t, 7> counts{};
  json::Value last;                        ///< the device's object of the last event
  std::map<std::string, int64_t> reasons;  ///< throttle reason -> events that named it
  double mean(size_t i) const;             ///< NaN: never told
};

struct RunRecord {
  static constexpr size_t recent_steps = 256;
  static constexpr size_t max_messages = 200;
  static constexpr size_t max_devices = 64;

  std::map<std::string, Series, std::less<>> curves;  ///< "loss", "eval_loss", "tokens_per_s_real", ...
  /// Seconds of a step: compute, exposed communication, data wait, host-bound. Their sum is time_s.
  MeanRows split{4};
  std::deque<StepFacts> recent;             ///< the last logged steps
  std::optional<StepFacts> first_step;      ///< logged
  int64_t steps = 0;                        ///< logged step events
  std::map<int64_t, DeviceRecord> devices;  ///< by index
  json::Value start, plan, end, last_eval;  ///< the last event of the kind; null: none
  json::Array saves;                        ///< the last few
  std::vector<std::string> messages;        ///< warnings, "step 7: ..."
  int64_t more_messages = 0;                ///< that did not fit
  /// The first nan event that tells best where it began: a layer, other words, or nothing; null: there was
  /// none.
  json::Value nonfinite;
  double nonfinite_step = std::numeric_limits<double>::quiet_NaN();  ///< the lowest of nan events
  json::Array findings;                                              ///< those of the last advice in the file
  int64_t nonfinite_steps = 0;
  bool slow_kernels = false;
  std::string first_time, last_time;  ///< "ts" of the first and the last event

  void add(const json::Value& event);

 private:
  void add_step(const json::Value& event, double step);
  void add_telemetry(const json::Value& event, double step);
  void add_message(const json::Value& event, double step);
  bool last_was_finding_ = false;
};

/// The member as a finite number, or NaN.
double number_of(const json::Value& object, std::string_view key);
/// The member's text without what is not UTF-8, at most `most` bytes; "" where it is no string.
std::string text_of(const json::Value& object, std::string_view key, size_t most = 500);
/// Text as valid UTF-8 without control characters, cut to `most` bytes.
std::string clean_text(std::string_view text, size_t most = 500);

}  // namespace deltatune
