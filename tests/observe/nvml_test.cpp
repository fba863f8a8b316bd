// NVML against a library of the same symbols: what it answers, and what it must not be believed.
#include "observe/nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>

#include "observe/telemetry.h"

namespace deltatune {
namespace {

struct Fake {  // as in tests/observe/fake/nvml.cpp
  int init_code;
  int code;
  unsigned number, utilisation;
  unsigned long long used, total, bits, count, xids;
  unsigned links;
  int calls, shutdowns;
  char bus[32];
};

class NvmlTest : public testing::Test {
 protected:
  void SetUp() override {
    file_ = ::dlopen(DELTATUNE_FAKE_NVML, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(file_, nullptr) << ::dlerror();
    fake = static_cast<Fake*>(::dlsym(file_, "fake_nvml"));
    ASSERT_NE(fake, nullptr);
    *fake = {};
    fake->number = 300;
    fake->utilisation = 98;
    fake->used = 70ull << 30;
    fake->total = 140ull << 30;
    fake->links = 18;
    std::strcpy(fake->bus, "0000:1b:00.0");
  }
  void TearDown() override { ::dlclose(file_); }
  std::unique_ptr<NvmlGpu> open(const char* bus = "0000:1b:00.0") {
    return NvmlGpu::open(bus, why, DELTATUNE_FAKE_NVML);
  }
  void* file_ = nullptr;
  Fake* fake = nullptr;
  std::string why;
};

TEST_F(NvmlTest, AGpuIsFoundByItsPlaceOnTheBus) {
  ASSERT_NE(open(), nullptr) << why;
  EXPECT_EQ(open("0000:2c:00.0"), nullptr);
  EXPECT_EQ(why, "Not Found (GPU at 0000:2c:00.0)");
  EXPECT_EQ(fake->shutdowns, 2);  // each that was started is ended
}

TEST_F(NvmlTest, ReadsWhatThereIs) {
  const auto gpu = open();
  fake->bits = 0x4;
  fake->count = 2;
  fake->xids = 1;
  const GpuSample s = gpu->sample();
  EXPECT_EQ(s.utilisation, 0.98);
  EXPECT_EQ(s.memory_used_gib, 70);
  EXPECT_EQ(s.memory_total_gib, 140);
  EXPECT_EQ(s.sm_clock_mhz, 300);
  EXPECT_EQ(s.sm_clock_max_mhz, 600);
  EXPECT_EQ(s.power_w, 0.3);
  EXPECT_EQ(s.temperature_c, 300);
  EXPECT_EQ(s.throttle, 4u);
  EXPECT_EQ(s.ecc_uncorrected, 2u);
  EXPECT_EQ(s.nvlink_errors, 18u * 4 * 2);
  EXPECT_EQ(s.xids, std::vector<uint64_t>{79});
  EXPECT_FALSE(s.lost);
  // The counters of errors are looked at now and then.
  EXPECT_FALSE(gpu->sample().ecc_uncorrected.has_value());
  for (int i = 0; i < 23; ++i) gpu->sample();
  EXPECT_TRUE(gpu->sample().ecc_uncorrected.has_value());
}

TEST_F(NvmlTest, EveryCallMayFail) {
  for (const int code : {2, 3, 4, 999, -1}) {
    fake->code = code;
    const auto gpu = open();
    ASSERT_NE(gpu, nullptr);
    const GpuSample s = gpu->sample();
    EXPECT_FALSE(s.utilisation || s.memory_used_gib || s.sm_clock_mhz || s.power_w || s.temperature_c ||
                 s.throttle || s.ecc_uncorrected || s.nvlink_errors || s.lost)
        << code;
    EXPECT_TRUE(s.xids.empty());
    TelemetryWindow window;
    window.add(s);
    EXPECT_EQ(json::dump(window.to_json(0, "bus")),
              "{\"index\": 0, \"pci_bus_id\": \"bus\", \"samples\": 1, \"xid\": []}");
  }
}

TEST_F(NvmlTest, NumbersThatCannotBeTrueAreNone) {
  const auto gpu = open();
  fake->utilisation = 4000000000u;
  fake->number = 4294967295u;
  fake->used = ~0ull;
  fake->bits = ~0ull;
  fake->count = ~0ull;
  fake->xids = ~0ull;
  const GpuSample s = gpu->sample();
  EXPECT_FALSE(s.utilisation || s.memory_used_gib || s.sm_clock_mhz || s.power_w || s.temperature_c);
  EXPECT_EQ(s.xids.size(), 16u);
  EXPECT_EQ(throttle_names(*s.throttle).size(), 6u);
  TelemetryWindow window;
  for (int i = 0; i < 100; ++i) window.add(s);
  const json::Value entry = window.to_json(0, "bus");
  EXPECT_EQ(entry.at("xid").as_array().size(), 64u);
  EXPECT_EQ(entry.at("lost_share").as_number(), 0);
  EXPECT_EQ(json::parse(json::dump(entry), "entry").at("ecc_uncorrected").as_integer(), INT64_MAX);
  HealthCheck().judge(entry, 100);
}

TEST_F(NvmlTest, AGpuThatIsLostIsNotAskedAgain) {
  const auto gpu = open();
  EXPECT_FALSE(gpu->sample().lost);
  fake->code = 15;
  EXPECT_TRUE(gpu->sample().lost);
  fake->calls = 0;
  EXPECT_TRUE(gpu->sample().lost);
  EXPECT_EQ(fake->calls, 0);
}

TEST_F(NvmlTest, WithoutNvlinkItIsAskedForOnce) {
  fake->links = 0;
  const auto gpu = open();
  EXPECT_FALSE(gpu->sample().nvlink_errors.has_value());
}

TEST_F(NvmlTest, ALibraryThatIsMissingOrNoneSaysSo) {
  EXPECT_EQ(NvmlGpu::open("0000:1b:00.0", why, "libnvml-that-is-not-there.so"), nullptr);
  EXPECT_NE(why.find("libnvml-that-is-not-there.so"), std::string::npos) << why;
  EXPECT_EQ(NvmlGpu::open("0000:1b:00.0", why, "libm.so.6"), nullptr);
  EXPECT_EQ(why, "libm.so.6 is no NVML");
  fake->init_code = 9;
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(why, "Some Error (GPU at 0000:1b:00.0)");
  EXPECT_EQ(fake->shutdowns, 0);
}

}  // namespace
}  // namespace deltatune
