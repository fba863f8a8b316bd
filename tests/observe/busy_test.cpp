// Busy intervals out of made-up records: overlaps, nesting, windows, gaps and their neighbours, names.
#include "observe/busy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace deltatune {
namespace {

ActivityTrace trace_of(std::vector<ActivityRecord> records) {
  return {std::move(records), {"a", "b", "copy host to device"}, 0};
}

ActivityRecord kernel(int64_t start, int64_t end, uint32_t name = 0) {
  return {start, end, name, 0, 7, ActivityKind::kernel};
}

ActivityRecord copy(int64_t start, int64_t end) {
  return {start, end, 2, 0, 7, ActivityKind::copy};
}

TEST(Busy, NothingRecorded) {
  const BusyReport all = busy_report(ActivityTrace{});
  EXPECT_EQ(all.span_ns, 0);
  EXPECT_EQ(all.idle_share(), 0);
  EXPECT_EQ(all.gaps, 0);
  EXPECT_TRUE(all.names.empty());
  const BusyReport window = busy_report(ActivityTrace{}, 100, 300);
  EXPECT_EQ(window.span_ns, 200);
  EXPECT_EQ(window.busy_ns, 0);
  EXPECT_EQ(window.idle_share(), 1);
  ASSERT_EQ(window.gaps, 1);
  EXPECT_EQ(window.largest[0].length_ns, 200);
  EXPECT_EQ(window.largest[0].before + window.largest[0].after, "");
}

TEST(Busy, OneRecord) {
  const BusyReport r = busy_report(trace_of({kernel(1000, 1400)}));
  EXPECT_EQ(r.span_ns, 400);
  EXPECT_EQ(r.busy_ns, 400);
  EXPECT_EQ(r.gaps, 0);
  ASSERT_EQ(r.names.size(), 1U);
  EXPECT_EQ(r.names[0].name, "a");
  EXPECT_EQ(r.names[0].calls, 1);
  EXPECT_EQ(r.names[0].total_ns, 400);
}

// [0,10) [5,20) overlap, [6,8) lies inside, [20,30) follows at once, [33,40) and [45,46) after gaps of 3
// and 5.
const std::vector<ActivityRecord> mixed = {kernel(0, 10), kernel(5, 20, 1),  kernel(6, 8),
                                           copy(20, 30),  kernel(33, 40, 1), kernel(45, 46)};

void check_mixed(const BusyReport& r) {
  EXPECT_EQ(r.span_ns, 46);
  EXPECT_EQ(r.busy_ns, 30 + 7 + 1);
  EXPECT_EQ(r.idle_ns(), 8);
  EXPECT_EQ(r.kernel_ns, 10 + 15 + 2 + 7 + 1);
  EXPECT_EQ(r.records, 6);
  ASSERT_EQ(r.gaps, 2);
  EXPECT_EQ(r.largest[0].start_ns, 40);
  EXPECT_EQ(r.largest[0].length_ns, 5);
  EXPECT_EQ(r.largest[0].before, "b");
  EXPECT_EQ(r.largest[0].after, "a");
  EXPECT_EQ(r.largest[1].length_ns, 3);
  EXPECT_EQ(r.largest[1].before, "copy host to device");
  EXPECT_EQ(r.largest[1].after, "b");
  ASSERT_EQ(r.names.size(), 3U);
  EXPECT_EQ(r.names[0].name, "b");
  EXPECT_EQ(r.names[0].total_ns, 22);
  EXPECT_EQ(r.names[1].name, "a");
  EXPECT_EQ(r.names[1].total_ns, 13);
  EXPECT_EQ(r.names[1].calls, 3);
  EXPECT_EQ(r.names[2].total_ns, 10);
}

TEST(Busy, OverlapsNestingAndGapsInAnyOrder) {
  std::vector<ActivityRecord> records = mixed;
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    check_mixed(busy_report(trace_of(records)));
    std::shuffle(records.begin(), records.end(), random);
  }
}

TEST(Busy, AGraphIsOneCallOfTheHost) {
  std::vector<ActivityRecord> records = {kernel(0, 10), kernel(12, 20), copy(20, 30), kernel(40, 50),
                                         kernel(60, 70)};
  for (size_t i = 0; i < records.size(); ++i) records[i].correlation = i < 3 ? 7 : static_cast<uint32_t>(i);
  EXPECT_EQ(busy_report(trace_of(records)).host_calls, 3);
  EXPECT_EQ(busy_report(trace_of(records), 35, 100).host_calls, 2);
}

TEST(Busy, CopyBesideAKernelCountsOnce) {
  const BusyReport r = busy_report(trace_of({kernel(0, 100), copy(20, 30), copy(90, 120)}));
  EXPECT_EQ(r.busy_ns, 120);
  EXPECT_EQ(r.kernel_ns, 100);
  EXPECT_EQ(r.gaps, 0);
}

TEST(Busy, WindowCutsRecordsAndHasGapsAtItsEdges) {
  const BusyReport r = busy_report(trace_of(mixed), 7, 50);
  EXPECT_EQ(r.span_ns, 43);
  EXPECT_EQ(r.busy_ns, 23 + 7 + 1);
  EXPECT_EQ(r.records, 3) << "those that begin inside";
  ASSERT_EQ(r.gaps, 3);
  EXPECT_EQ(r.largest[1].start_ns, 46);
  EXPECT_EQ(r.largest[1].length_ns, 4);
  EXPECT_EQ(r.largest[1].after, "");
  EXPECT_EQ(r.names[0].total_ns, 13 + 7);
  const BusyReport before = busy_report(trace_of(mixed), -10, 5);
  EXPECT_EQ(before.busy_ns, 5);
  EXPECT_EQ(before.largest[0].length_ns, 10);
  EXPECT_EQ(before.largest[0].before, "");
  EXPECT_EQ(before.largest[0].after, "a");
}

TEST(Busy, RecordsWithoutTimesAreIgnored) {
  const BusyReport r = busy_report(trace_of({kernel(0, 0), kernel(500, 600), kernel(550, 540)}));
  EXPECT_EQ(r.span_ns, 100);
  EXPECT_EQ(r.records, 1);
}

TEST(Busy, OnlyTheLargestGapsAreKept) {
  std::vector<ActivityRecord> records;
  int64_t at = 0;
  for (int64_t i = 1; i <= 100; ++i) {
    records.push_back(kernel(at, at + 10));
    at += 10 + (i * 37) % 101;  // gaps of 1 to 100, each once
  }
  const BusyReport r = busy_report(trace_of(records), 0, at, 5);
  EXPECT_EQ(r.gaps, 100);
  EXPECT_EQ(r.idle_ns(), 100 * 101 / 2);
  ASSERT_EQ(r.largest.size(), 5U);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(r.largest[i].length_ns, 100 - static_cast<int64_t>(i));
  EXPECT_TRUE(busy_report(trace_of(records), 0, at, 0).largest.empty());
}

// A sum over every nanosecond says the same.
TEST(Busy, EqualsACountOfEveryNanosecond) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    std::vector<ActivityRecord> records;
    std::vector<bool> busy(400, false);
    for (int i = 0; i < round; ++i) {
      const auto start = static_cast<int64_t>(random() % 350);
      const auto end = start + static_cast<int64_t>(random() % 40);
      records.push_back(kernel(start, end, random() % 2));
      for (int64_t t = start; t < end; ++t) busy[static_cast<size_t>(t)] = true;
    }
    int64_t gaps = 0;
    for (size_t t = 50; t < 300; ++t) gaps += !busy[t] && (t == 50 || busy[t - 1]);
    const BusyReport r = busy_report(trace_of(records), 50, 300);
    EXPECT_EQ(r.busy_ns, std::count(busy.begin() + 50, busy.begin() + 300, true)) << round;
    EXPECT_EQ(r.gaps, gaps) << round;
  }
}

TEST(Busy, LabelsAreForPeople) {
  EXPECT_EQ(kernel_label("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT"),
            "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT");
  EXPECT_EQ(kernel_label("copy host to device"), "copy host to device");
  EXPECT_EQ(kernel_label("_Zno such name"), "_Zno such name");
  EXPECT_EQ(kernel_label("_ZN9deltatune4cuda5plainEPfl"), "plain");
  EXPECT_EQ(kernel_label("_ZN9deltatune4cuda12_GLOBAL__N_15otherEPKf"), "other");
  // void deltatune::cuda::(anonymous namespace)::fill_normal_kernel<float>(float*, long, double)
  EXPECT_EQ(kernel_label("_ZN9deltatune4cuda12_GLOBAL__N_118fill_normal_kernelIfEEvPT_ld"),
            "fill_normal_kernel<float>");
  // As nvcc writes them: the file is part of the name.
  EXPECT_EQ(kernel_label("_ZN9deltatune4cuda59_GLOBAL__N__a9c1c5a6_26_attention_wgmma_forward_cu_c64392a5"
                         "14forward_kernelEPfl"),
            "attention_wgmma_forward/forward_kernel");
  EXPECT_EQ(kernel_label("_ZN9deltatune4cuda47_GLOBAL__N__ed8393a0_14_elementwise_cu_6bc35f56"
                         "18fill_normal_kernelIdEEvPT_ld"),
            "elementwise/fill_normal_kernel<double>");
  for (const char* odd : {"_ZN33_GLOBAL__N__ed8393a0_99_a_cu_6bc35f561kEPf", "_ZN14_GLOBAL__N__ed1kEPf"}) {
    EXPECT_EQ(kernel_label(odd).find('/'), std::string::npos) << kernel_label(odd);
  }
}

}  // namespace
}  // namespace deltatune
