// The profiler of a run: which steps are traced, and what becomes of it.
//
// Steps go by in cycles of wait + warmup + active, `repeat` times, as torch.profiler's schedule has them: in
// the wait nothing is traced, a warm-up step is traced and thrown away (graphs are captured anew in it, so
// that their work has names), active steps count. Behind the last cycle a few steps without tracing are timed
// where the waits had none. Then the files are written: profile.json (of other ranks profile-rank0001.json,
// ...) and with profile: trace also trace/rank0000.json.gz, ... and trace/merged.json.gz. Memory is bounded,
// all of it is taken at the first traced step. Without CUPTI, or where another tracer is at work, there are
// host times only, and a line says so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/trace.h"
#include "observe/profile.h"
#include "observe/trace_file.h"
#include "tensor/activity.h"
#include "train/config.h"
#include "train/engine.h"

namespace deltatune {

struct ProfileSchedule {
  enum class Stage { off, warmup, active };
  int64_t wait = 1, warmup = 1, active = 1, repeat = 1;

  int64_t cycle() const { return wait + warmup + active; }
  int64_t steps() const { return cycle() * repeat; }
  /// Steps behind the last cycle that are timed without tracing.
  int64_t untraced() const { return active < 3 ? active : 3; }
  /// Of a step, counted from 0.
  Stage stage(int64_t step) const;
};

/// What the keys say. Throws Error{usage} where `total_steps` have no room for a cycle.
ProfileSchedule profile_schedule(const Config&, int64_t total_steps);

class Profiler {
 public:
  /// `total_steps` that the run will make. Engine and config must outlive it. All that follows is called by
  /// all ranks together.
  Profiler(const Config& config, Engine& engine, int64_t total_steps);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Before each step. Throws Error{resource} where files cannot be written.
  void before_step();
  /// Behind the last step: what is still open ends, and what is not written yet is.
  void finish();

  /// Rank 0, once the files are written: tables for people, or JSON where `json` is set. Empty until then.
  std::string text() const;

 private:
  using Stage = ProfileSchedule::Stage;
  struct ClockPair {
    int64_t own = 0, tracer = 0;
  };
  void end_step();
  void start_tracing();
  /// Ends the window where one is open.
  void stop_tracing();
  void begin_window();
  void end_window();
  void end_tracing_safely() noexcept;
  ClockPair read_clocks() const;
  void shift_clock(ActivityTrace& trace, ClockPair begin, ClockPair end) const;
  void write();
  void write_trace();
  void remove_stale() const;
  /// Of all streams: what they still do writes into events.
  void sync();
  fs::path trace_file(int rank) const;

  const Config& config_;
  Engine& engine_;
  ProfileSchedule schedule_;
  fs::path output_;
  ActivityTracer tracer_;
  ProfileInput input_;
  TraceClock clock_;
  std::unique_ptr<TraceBuffer> buffer_;
  bool tracing_ = false;
  bool recording_ = false;  ///< the tracer of the device is at work
  bool open_ = false;       ///< a window is
  bool written_ = false;
  Stage stage_ = Stage::off;  ///< of the step under way
  int64_t step_ = -1;         ///< under way, counted from 0
  int64_t step_began_ns_ = 0;
  ClockPair clocks_;  ///< at the start of the window
  Moment begin_mark_, end_mark_;
  std::vector<double> untraced_ms_;
  size_t kept_ = 0;  ///< events and records of all windows
  std::vector<Profile> ranks_;
};

}  // namespace deltatune
