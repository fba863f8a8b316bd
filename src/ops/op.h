// Op names, and OpScope: what every op does around its kernel - count the call, its bytes and FLOPs, time and
// trace it.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "base/trace.h"
#include "ops/op_watch.h"
#include "tensor/device.h"

namespace deltatune {

enum class Op : uint8_t {
  embedding_forward,
  embedding_backward,
  embedding_part_forward,
  embedding_part_backward,
  rmsnorm_forward,
  rmsnorm_backward,
  add_rmsnorm_forward,
  add_rmsnorm_backward,
  matmul,
  qk_norm_rope_forward,
  qk_norm_rope_backward,
  attention_forward,
  attention_backward,
  sigmoid_gate_forward,
  sigmoid_gate_backward,
  gdn_prologue_forward,
  gdn_prologue_backward,
  gated_delta_forward,
  gated_delta_backward,
  gated_rmsnorm_forward,
  gated_rmsnorm_backward,
  swiglu_forward,
  swiglu_backward,
  gather_rows,
  scatter_rows,
  cross_entropy,
  sum_squares,
  grad_scale,
  adamw,
  fill,
  fill_normal,
  cast,
  add,
  count
};
static_assert(static_cast<size_t>(Op::count) <= max_ops);

/// "rmsnorm_forward", ...
const char* name_of(Op op);

/// Cost of one call: bytes read and written (each tensor once) and floating-point operations.
struct OpCost {
  double bytes = 0;
  double flops = 0;
};

/// Adds one call to the stream's counters. With a trace (base/trace.h) it also notes the call there, and with
/// timing on the host time until it is destroyed.
class OpScope {
 public:
  /// `sizes`: the tensor whose dtype and shape tell calls of the op apart; empty: none does.
  OpScope(Stream& stream, Op op, OpCost cost, const CTensor& sizes)
      : totals_(stream.totals()[static_cast<size_t>(op)]), timing_(stream.timing()) {
    if (current_op_watch) current_op_watch->before_op(stream);
    ++totals_.calls;
    totals_.bytes += cost.bytes;
    totals_.flops += cost.flops;
    if (current_trace) begin(stream, op, cost, sizes);
    if (timing_) start_ = std::chrono::steady_clock::now();
  }
  ~OpScope() {
    if (timing_) {
      totals_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }
    if (event_) end();
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

  /// What the trace gets; nullptr: nothing is traced.
  TraceEvent* event() const { return event_; }

 private:
  void begin(const Stream& stream, Op op, OpCost cost, const CTensor& sizes);
  void end();

  OpTotals& totals_;
  bool timing_;
  std::chrono::steady_clock::time_point start_;
  TraceBuffer* trace_ = nullptr;
  TraceEvent* event_ = nullptr;
};

/// Runs `kernel` in the stream's order: directly, or through Stream::run on a threaded stream.
template <class F>
void submit(Stream& stream, F&& kernel) {
  if (stream.runs_inline()) {
    kernel();
  } else if (TraceEvent* event = current_trace ? current_trace->open_op : nullptr) {
    stream.run([event, run = std::forward<F>(kernel)] {
      event->run_begin_ns = trace_now_ns();
      run();
      event->run_end_ns = trace_now_ns();
    });
  } else {
    stream.run(std::forward<F>(kernel));
  }
}

}  // namespace deltatune
