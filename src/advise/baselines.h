// What share of the roofline each op reached when it was measured at its best on a device.
#pragma once

#include <optional>
#include <string_view>

namespace deltatune {

/// Least time on the device's card / measured time, or nothing where this op was not measured on it. `card`:
/// name of the device card.
std::optional<double> baseline_share(std::string_view card, std::string_view op);

}  // namespace deltatune
