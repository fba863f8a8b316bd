// Device cards: the embedded ones, and files.
#include "observe/device_card.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/run_binary.h"

namespace deltatune {
namespace {

std::string complaint(std::string_view name) {
  try {
    device_card(name);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(DeviceCard, HopperPeakIsTheDenseOne) {
  EXPECT_EQ(device_card("h200").peak_tflops_bf16_dense, 989);
  EXPECT_EQ(device_card("H100").peak_tflops_bf16_dense, 989);
  EXPECT_EQ(device_card("h200").sm, "9.0");
  EXPECT_EQ(device_card("h200").memory_bytes, int64_t{143771} * 1024 * 1024);
}

// The sparse peak (1,979), an A100's (312), and those of PCIe cards (756, 835) have all been divided by.
TEST(DeviceCard, AGpuIsKnownByItsWholeName) {
  ASSERT_NE(card_of_product("NVIDIA H200"), nullptr);
  EXPECT_EQ(card_of_product("NVIDIA H200")->name, "h200");
  EXPECT_EQ(card_of_product("NVIDIA H100 80GB HBM3")->name, "h100");
  for (const char* product : {"NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL",
                              "NVIDIA H200 MIG 1g.18gb", "NVIDIA A100-SXM4-80GB", "nvidia h200", ""}) {
    EXPECT_EQ(card_of_product(product), nullptr) << product;
  }
  for (const DeviceCard& card : device_cards()) {
    EXPECT_TRUE(card.products.empty() || card.peak_tflops_bf16_dense == 989) << card.name;
  }
}

TEST(DeviceCard, EveryNumberHasASourceAndIsConsistent) {
  for (const DeviceCard& card : device_cards()) {
    EXPECT_EQ(card.sources.size(), 8u) << card.name;
    EXPECT_LT(card.gemm_tflops, card.peak_tflops_bf16_dense) << card.name;
    EXPECT_LE(card.gpu_link_gb_s, card.copy_gb_s) << card.name;
    EXPECT_LE(card.node_link_gb_s, card.gpu_link_gb_s) << card.name;
  }
}

TEST(DeviceCard, UnknownNameIsAUsageErrorWithASuggestion) {
  EXPECT_NE(complaint("h20").find("did you mean h200?"), std::string::npos) << complaint("h20");
  EXPECT_NE(complaint("tpu-v5-lite").find("known: h200, h100"), std::string::npos);
}

TEST(DeviceCard, FilesAreChecked) {
  ScratchFolder folder;
  const std::string good = slurp(std::string(DELTATUNE_SOURCE_DIR) + "/src/observe/devices.json");
  EXPECT_EQ(device_card(folder.write("card.json", good)).name, "h200");
  std::string bad = good;
  bad.replace(bad.find("\"value\": 989"), 12, "\"value\": -9 ");
  EXPECT_NE(complaint(folder.write("bad.json", bad)).find("must be above 0"), std::string::npos);
  bad = good;
  bad.replace(bad.find("\"measured\""), 10, "\"guessed\" ");
  EXPECT_NE(complaint(folder.write("bad.json", bad)).find("guessed"), std::string::npos);
  bad = good;
  bad.replace(bad.find("\"launch_us\""), 11, "\"lunch_us\" ");
  EXPECT_NE(complaint(folder.write("bad.json", bad)).find("launch_us is missing"), std::string::npos);
  EXPECT_NE(complaint(folder.write("bad.json", "{\"devices\": []}")).find("no device card"),
            std::string::npos);
  EXPECT_NE(complaint(folder.write("bad.json", "{\"devices\": 3}")).find("bad.json"), std::string::npos);
}

}  // namespace
}  // namespace deltatune
