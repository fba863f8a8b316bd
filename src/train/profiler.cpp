// Stages of the schedule, the clocks of host and device, and the files.
#include "train/profiler.h"

#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/gzip.h"
#include "base/log.h"
#include "base/median.h"
#include "comm/exchange.h"
#include "data/decompress.h"
#include "observe/device_card.h"
#include "observe/machine.h"
#include "observe/profile_table.h"
#include "ops/cuda_plugin.h"

namespace deltatune {
namespace {

// The first step runs op by op, the second is captured: what they take says nothing.
constexpr int64_t first_steady_step = 2;
constexpr size_t most_kept = size_t{1} << 22;
constexpr size_t most_merged = size_t{400} << 20;  // bytes of text
constexpr size_t captured_events = size_t{1} << 15;

// A step op by op has some 80 events a layer and row.
size_t events_of(const Config& config, const Engine& engine, int64_t steps) {
  const auto layers = static_cast<size_t>(engine.model().config().layers());
  const size_t row = 100 * layers + 1000;
  const size_t wanted =
      row * static_cast<size_t>(config.gradient_accumulation_steps) * static_cast<size_t>(steps);
  return std::clamp<size_t>(wanted, size_t{1} << 12, size_t{1} << 20);
}

std::string rank_file(int rank) {
  return rank == 0 ? "profile.json" : format("profile-rank{:04}.json", rank);
}

std::string decompressed(const fs::path& path) {
  const std::string bytes = read_file(path);
  OnePiece piece(bytes);
  Decompressor stream(piece, path.string());
  std::string out;
  std::string part(1 << 16, '\0');
  while (const size_t count = stream.read(part)) out.append(part.data(), count);
  return out;
}

}  // namespace

ProfileSchedule::Stage ProfileSchedule::stage(int64_t step) const {
  if (step >= steps()) return Stage::off;
  const int64_t at = step % cycle();
  return at < wait ? Stage::off : at < wait + warmup ? Stage::warmup : Stage::active;
}

ProfileSchedule profile_schedule(const Config& config, int64_t total_steps) {
  ProfileSchedule out{config.profile_wait, config.profile_warmup, config.profile_active,
                      config.profile_repeat};
  if (out.cycle() > total_steps) {
    throw Error(
        ErrorKind::usage,
        format("the run has {} steps, a cycle of the profiler {}", total_steps, out.cycle()),
        format("profile_wait {} + profile_warmup {} + profile_active {}", out.wait, out.warmup, out.active),
        "shorten the cycle, train for more steps, or set profile: off");
  }
  return out;
}

Profiler::Profiler(const Config& config, Engine& engine, int64_t total_steps)
    : config_(config),
      engine_(engine),
      schedule_(profile_schedule(config, total_steps)),
      output_(config.output_dir) {
  input_.rank = engine.comm().rank();
  input_.world = engine.comm().world_size();
  input_.gpu = engine.device().target() == Target::cuda;
  input_.device = engine.device().name();
  clock_.host = this_machine().host;
  if (!input_.gpu) return;
  input_.device = gpu_identity(engine.device()).product;
  if (const DeviceCard* card = card_of_product(input_.device)) {
    input_.gemm_tflops = card->gemm_tflops;
    input_.copy_gb_s = card->copy_gb_s;
  }
  if (const CudaPlugin* plugin = cuda_plugin(input_.missing)) tracer_ = plugin->activity;
  if (!tracer_.start_joined && input_.missing.empty()) input_.missing = "the plug-in has no tracer";
}

Profiler::~Profiler() {
  end_tracing_safely();
}

void Profiler::before_step() {
  end_step();
  ++step_;
  stage_ = schedule_.stage(step_);
  const bool new_cycle = step_ % schedule_.cycle() == 0;
  if (tracing_ && (stage_ == Stage::off || new_cycle)) stop_tracing();
  if (stage_ != Stage::off && !tracing_) start_tracing();
  if (stage_ == Stage::active && !open_) begin_window();
  const bool over = step_ >= schedule_.steps();
  if (over && !written_ && static_cast<int64_t>(untraced_ms_.size()) >= schedule_.untraced()) write();
  step_began_ns_ = trace_now_ns();
}

void Profiler::finish() {
  end_step();
  if (tracing_) stop_tracing();
  if (!written_ && !input_.windows.empty()) write();
}

void Profiler::end_step() {
  if (step_ < 0) return;
  if (open_) ++input_.windows.back().steps;
  if (stage_ != Stage::off || step_ < first_steady_step || written_) return;
  if (untraced_ms_.size() >= 32) untraced_ms_.erase(untraced_ms_.begin());
  untraced_ms_.push_back(static_cast<double>(trace_now_ns() - step_began_ns_) * 1e-6);
}

void Profiler::start_tracing() {
  if (!buffer_) {
    const int64_t steps = std::max(schedule_.warmup, schedule_.active);
    buffer_ = std::make_unique<TraceBuffer>(events_of(config_, engine_, steps), captured_events);
    engine_.comm().exchange("");  // they leave it together
    clock_.meeting_ns = trace_now_ns();
  }
  if (tracer_.start_joined && input_.missing.empty()) {
    recording_ = tracer_.start_joined(input_.missing);
    if (!recording_) log::warn("profile: no device times: {}", input_.missing);
  }
  if (recording_) {
    buffer_->push = tracer_.push;
    buffer_->pop = tracer_.pop;
    engine_.drop_untraced_graphs();
  }
  tracing_ = true;
  current_trace = buffer_.get();
}

void Profiler::stop_tracing() {
  if (open_) return end_window();
  end_tracing_safely();
}

void Profiler::end_tracing_safely() noexcept {
  if (!tracing_) return;
  tracing_ = open_ = false;
  current_trace = nullptr;
  buffer_->push = nullptr;
  buffer_->pop = nullptr;
  try {
    if (std::exchange(recording_, false)) tracer_.stop();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device's error shows itself at the next call
  }
}

Profiler::ClockPair Profiler::read_clocks() const {
  ClockPair best;
  int64_t least = INT64_MAX;
  for (int i = 0; i < 8; ++i) {
    const int64_t before = trace_now_ns();
    const int64_t between = tracer_.now();
    const int64_t after = trace_now_ns();
    if (after - before >= least) continue;
    least = after - before;
    best = {before + (after - before) / 2, between};
  }
  return best;
}

// The tracer's clock may run a little faster or slower.
void Profiler::shift_clock(ActivityTrace& trace, ClockPair begin, ClockPair end) const {
  const double span = static_cast<double>(end.tracer - begin.tracer);
  const double rate = span > 0 ? static_cast<double>(end.own - begin.own) / span : 1;
  const auto own = [&](int64_t ns) {
    return begin.own + static_cast<int64_t>(static_cast<double>(ns - begin.tracer) * rate);
  };
  for (ActivityRecord& r : trace.records) {
    if (r.end_ns <= r.start_ns) continue;
    r.start_ns = own(r.start_ns);
    r.end_ns = own(r.end_ns);
  }
}

void Profiler::sync() {
  engine_.stream().sync();
  engine_.store().sync();
  engine_.store().sync_updates();
}

void Profiler::begin_window() {
  if (!input_.gpu) sync();
  buffer_->clear();
  open_ = true;
  ProfileWindow& window = input_.windows.emplace_back();
  if (recording_) {
    clocks_ = read_clocks();
    engine_.stream().mark(begin_mark_);
  }
  window.begin_ns = trace_now_ns();
}

void Profiler::end_window() {
  ProfileWindow& window = input_.windows.back();
  window.end_ns = trace_now_ns();
  open_ = tracing_ = false;
  current_trace = nullptr;
  buffer_->push = nullptr;
  buffer_->pop = nullptr;
  if (recording_) {
    engine_.stream().mark(end_mark_);
    const ClockPair clocks = read_clocks();
    recording_ = false;
    window.activity = tracer_.stop();
    shift_clock(window.activity, clocks_, clocks);
    window.marked_s = engine_.stream().seconds_between(begin_mark_, end_mark_);
  }
  sync();
  window.events = buffer_->events();
  window.dropped = buffer_->dropped();
  input_.captured = buffer_->captured_events();
  kept_ += window.events.size() + window.activity.records.size();
  if (kept_ > most_kept && input_.windows.size() > 1) {
    log::warn("profile: {} traced steps are as many as are kept",
              input_.windows.size() * static_cast<size_t>(schedule_.active));
    input_.windows.pop_back();
  }
}

// What an earlier profile has left, of more ranks or with a trace.
void Profiler::remove_stale() const {
  std::error_code code;
  for (int rank = std::max(1, input_.world); fs::remove(output_ / rank_file(rank), code); ++rank) {
  }
  if (config_.profile != "trace") fs::remove_all(output_ / "trace", code);
  for (int rank = input_.world; fs::remove(trace_file(rank), code); ++rank) {
  }
  if (input_.world == 1) fs::remove(output_ / "trace" / "merged.json.gz", code);
}

fs::path Profiler::trace_file(int rank) const {
  return output_ / "trace" / format("rank{:04}.json.gz", rank);
}

void Profiler::write_trace() {
  std::error_code code;
  fs::create_directories(output_ / "trace", code);
  GzipWriter file;
  file.add(trace_text(input_, clock_));
  write_file_atomic(trace_file(input_.rank), file.finish());
}

void Profiler::write() {
  written_ = true;
  Communicator& comm = engine_.comm();
  input_.untraced_ms = untraced_ms_.empty() ? 0 : median(untraced_ms_);
  input_.untraced = static_cast<int64_t>(untraced_ms_.size());
  const Profile profile = make_profile(input_);
  const bool leads = input_.rank == 0;
  const bool trace = config_.profile == "trace";
  const std::string file = json::dump(profile.to_json(), 1) + "\n";
  if (leads) remove_stale();
  comm.exchange("");  // before anybody writes
  together(comm, "write the profile", [&] {
    write_file_atomic(output_ / rank_file(input_.rank), file);
    if (trace) write_trace();
  });
  if (input_.world == 1) {
    ranks_ = {profile};
  } else {
    const std::vector<std::string> all = comm.collect(file);
    for (const std::string& one : all)
      ranks_.push_back(Profile::from_json(json::parse(one, "profile of a rank")));
  }
  together(comm, "merge the traces", [&] {
    if (!leads || !trace || input_.world == 1) return;
    std::vector<std::string> texts;
    size_t bytes = 0;
    for (int rank = 0; rank < input_.world; ++rank) {
      texts.push_back(decompressed(trace_file(rank)));
      bytes += texts.back().size();
      if (bytes <= most_merged) continue;
      return log::warn("profile: the traces of {} ranks are too long to be merged; trace fewer steps",
                       input_.world);
    }
    GzipWriter merged;
    merged.add(merged_trace_text(texts));
    write_file_atomic(output_ / "trace" / "merged.json.gz", merged.finish());
  });
  input_.windows.clear();
  if (leads) {
    log::info("profile of {} in {}{}", counted(profile.steps, "step"), (output_ / "profile.json").string(),
              trace ? ", trace in " + (output_ / "trace").string() : "");
  }
}

std::string Profiler::text() const {
  if (ranks_.empty()) return "";
  if (config_.json) return json::dump(ranks_.front().to_json(), 2) + "\n";
  const std::string table =
      profile_text(ranks_.front(), {config_.profile_group, config_.profile_sort, config_.profile_top});
  return ranks_.size() > 1 ? table + ranks_text(ranks_, config_.profile_top) : table;
}

}  // namespace deltatune
