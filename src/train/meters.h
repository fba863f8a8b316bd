// Meters: what a step's counts and times say about the run. Pure arithmetic; docs/metrics.md has the
// formulas.
#pragma once

#include <optional>
#include <string>

#include "model/config.h"
#include "observe/device_card.h"
#include "observe/metrics.h"
#include "tensor/device.h"
#include "train/step.h"

namespace deltatune {

/// What the run's device is compared with.
struct MeterDevice {
  std::optional<DeviceCard> card;  ///< none: no MFU and no share of the roofline
  std::string note;                ///< one line for the log: the peak and its name, or why there is none
};

/// By the name that the driver gives the GPU, see card_of_product. `product` is empty for the CPU, which has
/// no card: what a core reaches depends on too much.
MeterDevice meter_device(Target target, const std::string& product);

/// Sets tokens, rates, fill, mfu, tflops_per_device, the shares and the waits of `line`. Everything of
/// `report` is of all ranks together but times and waits, which are rank 0's.
void set_meters(StepLine& line, const StepReport& report, const ModelConfig& model, const MeterDevice& device,
                int world_size);

}  // namespace deltatune
