// Rounds of one step, compared.
#include "train/bench_bits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "ops/op.h"
#include "ops/op_recorder.h"
#include "ops/ops.h"
#include "train/bench_op.h"

namespace deltatune {
namespace {

constexpr size_t most_named = 8;
constexpr size_t most_lines = 40;

bool updates(Op op) {
  return op == Op::sum_squares || op == Op::grad_scale || op == Op::adamw;
}

class Rounds {
 public:
  Rounds(Device& device, const BenchStepOptions& options, const std::string& glob)
      : comm_(make_solo_communicator()),
        rows_(bench_rows(options)),
        engine_(bench_engine(device, *comm_, options, options.depths.back(), rows_)),
        recorder_(device) {
    if (options.graph == GraphMode::never) {
      engine_->give_step(recorder_, rows_.front());
      int64_t number = 0;
      for (const RecordedCall& call : recorder_.calls()) {
        ++number;
        if (updates(call.op)) continue;
        call.run(engine_->stream());
        if (call.op != Op::fill && !glob_match(glob, name_of(call.op))) continue;
        calls_.push_back(&call);
        for (const Tensor& x : call.outputs)
          watch(format("op {} {} {}", number, name_of(call.op), call.shape), x);
      }
    } else {
      // From the last block to the first, as backward makes them.
      const std::vector<Param>& params = engine_->store().table().params;
      for (size_t i = params.size(); i-- > 0;) watch(params[i].name, engine_->store().grads()[i]);
    }
    memory_ =
        device.allocate(watched_.size() * sizeof(double), "sums of squares", "check_bits", Lifetime::run);
  }

  /// Sums of squares of what is watched, in its order.
  std::vector<double> next() {
    Stream& s = engine_->stream();
    const auto count = static_cast<int64_t>(watched_.size());
    std::vector<double> out(watched_.size(), 0);
    s.upload({memory_.data(), DType::f64, {count}}, out.data());
    size_t at = 0;
    if (calls_.empty()) {
      engine_->begin_window();
      engine_->micro_step(rows_.front());
      while (at < watched_.size()) square(at++);
    }
    for (const RecordedCall* call : calls_) {
      call->run(s);
      for (size_t i = 0; i < call->outputs.size() && at < watched_.size(); ++i) {
        if (squarable(call->outputs[i])) square(at++);
      }
    }
    s.download(out.data(), {memory_.data(), DType::f64, {count}});
    s.sync();
    return out;
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  static bool squarable(const Tensor& x) { return x.dtype == DType::f32 || x.dtype == DType::bf16; }
  void watch(std::string name, const Tensor& x) {
    if (!squarable(x)) return;
    names_.push_back(std::move(name));
    watched_.push_back({x.data, x.dtype, {x.count()}});
  }
  void square(size_t i) {
    ops::sum_squares(engine_->stream(), {memory_.data() + i * sizeof(double), DType::f64, {1}}, watched_[i]);
  }

  std::unique_ptr<Communicator> comm_;
  std::vector<Batch> rows_;
  std::unique_ptr<Engine> engine_;
  OpRecorder recorder_;
  std::vector<const RecordedCall*> calls_;  ///< op by op; empty: whole steps
  std::vector<std::string> names_;
  std::vector<Tensor> watched_;
  Buffer memory_;
};

}  // namespace

std::string differences(const std::vector<std::string>& names, const std::vector<double>& before,
                        const std::vector<double>& now) {
  std::string list;
  size_t count = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    // Bits, so that what was no number stays equal to itself.
    if (std::bit_cast<uint64_t>(now[i]) == std::bit_cast<uint64_t>(before[i])) continue;
    if (count++ < most_named) {
      list += format("{}{} {:.1e}", list.empty() ? "" : ", ", names[i],
                     std::abs(now[i] - before[i]) / std::max(before[i], 1e-300));
    }
  }
  if (count == 0) return "";
  return format("{} of {} differ, first {}{}", count, before.size(), list, count > most_named ? ", ..." : "");
}

BitsReport check_bits(Device& device, const BenchStepOptions& options, int64_t rounds,
                      const std::string& glob) {
  Rounds all(device, options, glob);
  all.next();  // an op may write a part of an array only: what the rest holds has to settle
  const std::vector<double> first = all.next();
  BitsReport out;
  for (; out.rounds < rounds; ++out.rounds) {
    const std::string found = differences(all.names(), first, all.next());
    if (found.empty()) continue;
    ++out.different;
    if (out.lines.size() < most_lines) {
      out.lines.push_back(format("round {}: {}", out.rounds + 3, found));
      log::warn("{}", out.lines.back());
    }
  }
  return out;
}

}  // namespace deltatune
