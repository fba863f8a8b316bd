// The step.
#include "train/step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/trace.h"
#include "comm/exchange.h"

namespace deltatune {
namespace {

// The roofline's step runs on the null table: what it does is no part of this one.
class Untraced {
 public:
  Untraced() : trace_(std::exchange(current_trace, nullptr)) {}
  ~Untraced() { current_trace = trace_; }
  Untraced(const Untraced&) = delete;
  Untraced& operator=(const Untraced&) = delete;

 private:
  TraceBuffer* trace_;
};

}  // namespace

Trainer::Trainer(Engine& engine, RowStream& stream, Schedule schedule, int64_t accumulation)
    : engine_(engine), stream_(stream), schedule_(std::move(schedule)), accumulation_(accumulation) {
  DELTATUNE_ASSERT(accumulation == 1 || !engine.options().gradient_release);
}

Batch Trainer::next_row(StepReport& report) {
  const Stopwatch waiting;
  Batch batch = [&] {
    const TraceSpan span("data wait", TraceKind::data);
    return stream_.next();
  }();
  report.data_seconds += waiting.seconds();
  report.targets += batch.num_targets;
  report.tokens += batch.real_tokens;
  report.slots += static_cast<int64_t>(batch.tokens.size());
  report.documents += batch.documents;
  report.work += row_work(batch);
  if (roofline_ != nullptr) {
    const TraceSpan span("roofline of the row");
    const Untraced nothing;
    roofline_->row(batch);
  }
  return batch;
}

void Trainer::sum_counts(StepReport& report) {
  const TraceSpan span("sum over ranks");
  int64_t roofline_ns = roofline_ ? static_cast<int64_t>(roofline_->seconds() * 1e9) : 0;
  int64_t matmul_ns = roofline_ ? static_cast<int64_t>(roofline_->matmul_seconds() * 1e9) : 0;
  RowWork& work = report.work;
  sum_over_ranks(engine_.comm(),
                 {&report.targets, &report.tokens, &report.slots, &report.documents, &work.tokens,
                  &work.targets, &work.pairs, &work.chunk_squares, &roofline_ns, &matmul_ns});
  const double per_rank = 1e-9 / engine_.comm().world_size();
  report.roofline_seconds = per_rank * static_cast<double>(roofline_ns);
  report.matmul_seconds = per_rank * static_cast<double>(matmul_ns);
}

UpdateResult Trainer::accumulate_and_update(StepReport& report) {
  engine_.begin_window();
  for (int64_t i = 0; i < accumulation_; ++i) {
    const Batch batch = next_row(report);
    // A row without a target has a gradient of exactly zero; but where there are other ranks, they wait for
    // this one's part in gathering and reducing.
    engine_.comm().note(steps_done_ + 1, "forward and backward");
    if (batch.num_targets > 0 || engine_.comm().world_size() > 1) engine_.micro_step(batch);
  }
  sum_counts(report);
  engine_.comm().note(steps_done_ + 1, "update");
  if (report.targets == 0) return {};
  return engine_.update(report.learning_rate, updates_done_ + 1, report.targets);
}

// What the gradient is divided by has to be known before the first block is updated.
UpdateResult Trainer::update_inside_backward(StepReport& report) {
  const Batch batch = next_row(report);
  sum_counts(report);
  engine_.comm().note(steps_done_ + 1, "forward and backward");
  if (report.targets == 0) return {};
  return engine_.single_step(batch, report.learning_rate, updates_done_ + 1, report.targets);
}

StepReport Trainer::step() {
  const TraceSpan span("step");
  const Stopwatch clock;
  const double waited_before = engine_.comm().waited_s();
  if (roofline_ != nullptr) roofline_->begin();
  engine_.launches().begin_step(engine_.stream());
  StepReport report;
  report.learning_rate = schedule_.rate(steps_done_);
  const UpdateResult result =
      engine_.options().gradient_release ? update_inside_backward(report) : accumulate_and_update(report);
  if (report.targets > 0) {
    report.loss_sum = result.loss_sum;
    report.grad_norm = result.grad_norm;
    report.nonfinite = result.nonfinite || !std::isfinite(result.loss_sum);
    if (!result.nonfinite) ++updates_done_;
    if (report.nonfinite) {
      if (engine_.comm().world_size() > 1)
        report.nonfinite_ranks = ranks_where(engine_.comm(), result.own_nonfinite);
      report.nonfinite_origin = find_nonfinite(engine_, accumulation_);
    }
  } else {
    report.empty = true;
  }
  report.step = ++steps_done_;
  report.epoch = stream_.epoch_progress();
  report.seconds = clock.seconds();
  // Waiting for data has a figure of its own.
  const double host_bound = engine_.launches().host_bound_seconds();
  if (host_bound >= 0) report.host_bound_seconds = std::max(0.0, host_bound - report.data_seconds);
  // Below 0 where the communicator has no such clock; alone, nobody is waited for.
  const double waited = engine_.comm().waited_s();
  report.comm_seconds = waited >= 0 ? waited - waited_before : engine_.comm().world_size() == 1 ? 0 : -1;
  return report;
}

json::Value Trainer::state() const {
  json::Value out;
  out.set("steps", steps_done_);
  out.set("updates", updates_done_);
  out.set("total_steps", schedule_.total_steps);
  out.set("accumulation", accumulation_);
  out.set("world_size", int64_t{engine_.comm().world_size()});
  out.set("cursor", stream_.cursor().to_json());
  return out;
}

void Trainer::restore(const json::Value& state) {
  // Other windows: what is counted in steps (schedule, end of the run) no longer means the same rows.
  const int64_t world = engine_.comm().world_size();
  const json::Value* ranks = state.find("world_size");
  const int64_t rows = state.at("accumulation").as_integer() * (ranks ? ranks->as_integer() : 1);
  if (rows != accumulation_ * world) {
    throw Error(ErrorKind::usage,
                format("the checkpoint was made with {} rows in a step, this run has {} "
                       "(gradient_accumulation_steps {} on {} ranks)",
                       rows, accumulation_ * world, accumulation_, world),
                "gradient_accumulation_steps",
                rows % world == 0 ? format("resume with gradient_accumulation_steps: {}", rows / world)
                                  : format("resume on a number of ranks that divides {}, or start anew from "
                                           "the checkpoint's weights",
                                           rows));
  }
  stream_.seek(Cursor::from_json(state.at("cursor")));
  steps_done_ = state.at("steps").as_integer();
  updates_done_ = state.at("updates").as_integer();
}

}  // namespace deltatune
