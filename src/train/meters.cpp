// Rates and shares of a step.
#include "train/meters.h"

#include "base/format.h"

namespace deltatune {

MeterDevice meter_device(Target target, const std::string& product) {
  if (target == Target::cpu)
    return {std::nullopt, "meters: no MFU and no share of the roofline, the CPU has no device card"};
  const DeviceCard* card = card_of_product(product);
  if (card == nullptr) {
    return {
        std::nullopt,
        format("meters: no MFU and no share of the roofline, there is no device card for \"{}\"", product)};
  }
  return {*card,
          format("meters: MFU is of {:.0f} TFLOP/s, the dense bf16 peak of {}; roofline: {:.0f} TFLOP/s "
                 "and {:.0f} GB/s (device card {})",
                 card->peak_tflops_bf16_dense, card->title, card->gemm_tflops, card->copy_gb_s, card->name)};
}

void set_meters(StepLine& line, const StepReport& report, const ModelConfig& model, const MeterDevice& device,
                int world_size) {
  line.tokens = report.slots;
  line.real_tokens = report.tokens;
  line.target_tokens = report.targets;
  line.fill = report.slots > 0 ? static_cast<double>(report.tokens) / static_cast<double>(report.slots) : 0;
  line.time_s = report.seconds;
  line.data_wait_s = report.data_seconds;
  if (report.comm_seconds >= 0) line.exposed_comm_s = report.comm_seconds;
  if (!(report.seconds > 0)) return;
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / report.seconds; };
  line.tokens_per_s = rate(report.tokens);
  line.tokens_per_s_supervised = rate(report.targets);
  line.tokens_per_s_slots = rate(report.slots);
  line.tokens_per_s_per_device = line.tokens_per_s / world_size;
  line.tflops_per_device = model_flops(model, report.work) / report.seconds / world_size * 1e-12;
  if (report.host_bound_seconds >= 0) line.host_bound_share = report.host_bound_seconds / report.seconds;
  if (!device.card) return;
  line.mfu = *line.tflops_per_device / device.card->peak_tflops_bf16_dense;
  if (report.roofline_seconds > 0) line.roofline_share = report.roofline_seconds / report.seconds;
  if (report.matmul_seconds > 0) line.gemm_share = report.matmul_seconds / report.seconds;
}

}  // namespace deltatune
