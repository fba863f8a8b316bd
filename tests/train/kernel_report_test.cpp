// The table of kernels at the start of a run, and the stop before a slow one.
#include "train/kernel_report.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"

namespace deltatune {
namespace {

KernelRequest request() {
  KernelRequest r;
  r.device = planned_cuda(90);
  r.attention = {8, 2, 256, 64};
  r.tokens = 512;
  return r;
}

/// A selection of two used ops: one fast, one slow because its better kernel was refused.
KernelSelection selection() {
  static const KernelEntry plain{"add.plain", Op::add, Target::cuda, KernelSpeed::plain};
  static const KernelEntry fast{"fill.fast", Op::fill, Target::cuda, KernelSpeed::fast};
  KernelSelection out;
  out.request = request();
  for (SelectedKernel& op : out.ops) op = {&plain, false, ""};
  out.ops[static_cast<size_t>(Op::add)] = {&plain, true, "add.fast: needs bf16, this is f32"};
  out.ops[static_cast<size_t>(Op::fill)] = {&fast, true, ""};
  return out;
}

TEST(KernelReport, TableSaysWhichAndWhy) {
  EXPECT_EQ(kernel_table(selection()),
            "kernels for bf16 on sm_90, cuDNN 91900:\n"
            "  fill                     fast\n"
            "  add                      plain      slow  not add.fast: needs bf16, this is f32");
}

TEST(KernelReport, JsonHasTheOpsInUse) {
  EXPECT_EQ(json::dump(kernels_json(selection())),
            R"_({"fill": "fast", "add": "plain, slow (not add.fast: needs bf16, this is f32)"})_");
}

TEST(KernelReport, SlowKernelsStopTheRunUnlessAllowed) {
  try {
    refuse_slow_kernels(selection(), false);
    FAIL() << "a slow run went on";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2);
    EXPECT_STREQ(error.what(), "these operations would run on plain, slow kernels: add");
    EXPECT_EQ(error.where(), "bf16 on sm_90: add.fast: needs bf16, this is f32");
    EXPECT_NE(error.fix().find("allow_slow_kernels: true"), std::string::npos) << error.fix();
  }
  refuse_slow_kernels(selection(), true);
  KernelSelection fast = selection();
  fast.ops[static_cast<size_t>(Op::add)].used = false;
  refuse_slow_kernels(fast, false);
}

/// On a GPU f32 has no fast kernels of the mixing ops, whatever the list gains for bf16.
TEST(KernelReport, F32OnAGpuIsSlow) {
  KernelRequest r = request();
  r.storage = DType::f32;
  EXPECT_TRUE(select_kernels(r).slow());
  EXPECT_THROW(begin_with_kernels(select_kernels(r), false), Error);
  r.device = {};
  begin_with_kernels(select_kernels(r), false);  // the CPU has one kernel an op: nothing to tell or refuse
}

TEST(KernelReport, LogLinesCarryTheMark) {
  log::set_mark(slow_mark);
  testing::internal::CaptureStderr();
  log::warn("one");
  log::set_mark("");
  log::warn("two");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[slow kernels] warning: one\nwarning: two\n");
}

}  // namespace
}  // namespace deltatune
