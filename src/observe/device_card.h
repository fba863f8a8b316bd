// Device cards: the numbers of one device that plan and meters compare with.
//
// devices.json, embedded into the program, has a card per known device; each number says whether it is a
// datasheet's, measured or an estimate, and where it is from. A file of the same form can be read too, so
// that a card measured on one machine serves a plan on another.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace deltatune {

struct DeviceCard {
  std::string name;                   ///< "h200"
  std::string title;                  ///< "NVIDIA H200 SXM 141 GB"
  std::string sm;                     ///< "9.0"; empty for a CPU
  std::vector<std::string> products;  ///< names under which the driver shows it; may be none
  int64_t memory_bytes = 0;
  double peak_tflops_bf16_dense = 0;  ///< the denominator of MFU
  double gemm_tflops = 0;             ///< attainable by a large bf16 matrix product
  double copy_gb_s = 0;               ///< device memory, bytes read plus written, 1e9 per second
  double host_link_gb_s = 0;          ///< host memory to device, one way
  double gpu_link_gb_s = 0;           ///< to another device of the same host, one way
  double node_link_gb_s = 0;          ///< to a device of another host, one way, per device
  double launch_us = 0;               ///< host time of one kernel launch
  /// 90 for "9.0"; 0 for a CPU.
  int sm_number() const;
  std::map<std::string, std::string>
      sources;  ///< field -> "measured: ...", "datasheet: ...", "estimate: ..."
};

/// The embedded cards in the order of the file.
const std::vector<DeviceCard>& device_cards();

/// A card by name (case does not matter), or read from a file when `name` ends in ".json" (its first card).
/// Throws Error{usage} with the known names or what is wrong with the file.
DeviceCard device_card(std::string_view name);

/// The embedded card of the GPU that the driver calls `product`; nullptr where there is none. The whole name
/// counts: an "NVIDIA H100 PCIe" or a MIG slice is another device with another peak.
const DeviceCard* card_of_product(std::string_view product);

/// Cards of a text of devices.json's form. Throws Error{data} for a missing field, a number that is not above
/// zero, an unknown kind or an unknown key.
std::vector<DeviceCard> parse_device_cards(std::string_view text, std::string_view where);

}  // namespace deltatune
