// Rows on the null table.
#include "train/step_roofline.h"

#include <algorithm>
#include <utility>

#include "comm/gpu_memory.h"
#include "ops/null_device.h"
#include "ops/op.h"

namespace deltatune {
namespace {

using Totals = std::array<OpTotals, max_ops>;

// Of all that the engine has been given so far.
Totals counted(const Engine& engine) {
  Totals sum = engine.stream().totals();
  for (const Stream* beside : {engine.store().update_stream(), engine.store().comm_stream()}) {
    if (!beside) continue;
    for (size_t i = 0; i < max_ops; ++i) {
      sum[i].flops += beside->totals()[i].flops;
      sum[i].bytes += beside->totals()[i].bytes;
    }
  }
  return sum;
}

Totals difference(Totals a, const Totals& b) {
  for (size_t i = 0; i < max_ops; ++i) {
    a[i].flops -= b[i].flops;
    a[i].bytes -= b[i].bytes;
  }
  return a;
}

}  // namespace

double roofline_seconds(const Totals& totals, const DeviceCard& card) {
  double sum = 0;
  for (const OpTotals& t : totals)
    sum += std::max(t.flops / (card.gemm_tflops * 1e12), t.bytes / (card.copy_gb_s * 1e9));
  return sum;
}

StepRoofline::StepRoofline(const ModelConfig& config, bool tied, const EngineOptions& options,
                           const DeviceFacts& facts, int world_size, DeviceCard card)
    : device_(make_null_device(facts)),
      comm_(make_null_communicator(world_size)),
      card_(std::move(card)),
      release_(options.gradient_release) {
  const CommMemory exchange = allocate_comm_memory(*device_, world_size);
  engine_ = std::make_unique<Engine>(*device_, *comm_, config, tied, options);
  if (!release_) {
    const Batch batch = synthetic_batch(options.tokens, options.tokens, 1);
    row(batch);
    const Totals before = counted(*engine_);
    engine_->update(1e-5, 1, std::max<int64_t>(1, batch.num_targets));
    update_ = difference(counted(*engine_), before);
  }
  begin();
}

void StepRoofline::begin() {
  before_ = counted(*engine_);
  first_ = true;
}

void StepRoofline::row(const Batch& batch) {
  if (release_) {
    engine_->single_step(batch, 1e-5, 1, std::max<int64_t>(1, batch.num_targets));
    return;
  }
  if (first_) engine_->begin_window();
  first_ = false;
  engine_->micro_step(batch);
}

double StepRoofline::seconds() const {
  Totals totals = difference(counted(*engine_), before_);
  for (size_t i = 0; i < max_ops; ++i) {
    totals[i].flops += update_[i].flops;
    totals[i].bytes += update_[i].bytes;
  }
  return roofline_seconds(totals, card_);
}

double StepRoofline::matmul_seconds() const {
  const size_t matmul = static_cast<size_t>(Op::matmul);
  return (counted(*engine_)[matmul].flops - before_[matmul].flops) / (card_.gemm_tflops * 1e12);
}

}  // namespace deltatune
