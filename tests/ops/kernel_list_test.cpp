// The kernel list: that it is complete and well-formed, what select_kernels() chooses and refuses, and that a
// stream's scratch is its kernels'.
#include "ops/kernel_list.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "ops/null_device.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace deltatune {
namespace {

const std::vector<Op> all_ops = [] {
  std::vector<Op> out;
  for (size_t i = 0; i < static_cast<size_t>(Op::count); ++i) out.push_back(static_cast<Op>(i));
  return out;
}();

/// A 27B model's request on an H200.
KernelRequest request_27b() {
  KernelRequest r;
  r.device = planned_cuda(90);
  r.attention = {24, 4, 256, 64};
  r.gdn = {16, 48, 128, 128, 4};
  r.hidden = 5120;
  r.intermediate = 17408;
  r.vocabulary = 248320;
  r.tokens = 8192;
  r.max_documents = 256;
  return r;
}

/// A kernel that takes everything, to make worse.
KernelEntry entry() {
  return {"add.test", Op::add, Target::cuda, KernelSpeed::fast};
}

TEST(KernelList, NamesAreTheOpsAndUnique) {
  std::set<std::string> names;
  for (const KernelEntry& kernel : kernel_list()) {
    EXPECT_TRUE(std::string(kernel.name).starts_with(std::string(name_of(kernel.op)) + ".")) << kernel.name;
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name << " is there twice";
    EXPECT_EQ(find_kernel(kernel.name), &kernel);
  }
  EXPECT_EQ(find_kernel("add.nothing"), nullptr);
}

/// Whatever fast kernels refuse, the plain one takes: any GPU, both dtypes, determinism, training, capture.
TEST(KernelList, EveryOpEndsWithAKernelForEverything) {
  for (const Op op : all_ops) {
    EXPECT_EQ(kernels_of(Target::cpu, op).size(), 1U) << name_of(op);
    const KernelEntry& last = plain_kernel(Target::cuda, op);
    EXPECT_EQ(&last, kernels_of(Target::cuda, op).back()) << name_of(op);
    EXPECT_NE(last.speed, KernelSpeed::fast) << last.name;
    for (const DType storage : {DType::f32, DType::bf16}) {
      KernelRequest r = request_27b();
      r.device = {Target::cuda, 80, 0};
      r.storage = storage;
      r.deterministic = r.graph = true;
      EXPECT_EQ(refusal(last, r), "") << last.name;
    }
  }
}

/// What is neither fast nor slow is an op's last kernel, and nothing slow stands before it.
TEST(KernelList, OnlyIsTheLast) {
  for (const KernelEntry& kernel : kernel_list()) {
    if (kernel.speed != KernelSpeed::only) continue;
    const auto all = kernels_of(kernel.target, kernel.op);
    EXPECT_EQ(&kernel, all.back()) << kernel.name;
    for (const KernelEntry* other : all) EXPECT_NE(other->speed, KernelSpeed::plain) << other->name;
  }
}

TEST(KernelList, TheBestKernelThatFitsIsTaken) {
  const KernelSelection selection = select_kernels(request_27b());
  for (const Op op : all_ops) {
    const SelectedKernel& chosen = selection[op];
    EXPECT_TRUE(chosen.used) << name_of(op);
    EXPECT_EQ(refusal(*chosen.kernel, selection.request), "");
    for (const KernelEntry* kernel : kernels_of(Target::cuda, op)) {
      if (kernel == chosen.kernel) break;
      // Each better one is named with a reason.
      EXPECT_NE(chosen.refused.find(std::string(kernel->name) + ": "), std::string::npos) << chosen.refused;
    }
    EXPECT_EQ(selection.choice()[static_cast<size_t>(op)], chosen.kernel);
  }
  EXPECT_STREQ(selection[Op::matmul].kernel->name, "matmul.cublaslt");
  EXPECT_FALSE(selection[Op::matmul].slow());
}

TEST(KernelList, ReasonsOfRefusal) {
  const KernelRequest r = request_27b();
  EXPECT_EQ(refusal(entry(), r), "");
  KernelRequest other = r;
  other.storage = DType::f64;
  EXPECT_EQ(refusal(entry(), other), "f64 is not supported");
  other = r;
  other.device = {};
  EXPECT_EQ(refusal(entry(), other), "is for another machine");

  KernelEntry kernel = entry();
  kernel.bf16_only = true;
  EXPECT_EQ(refusal(kernel, r), "");
  other = r;
  other.storage = DType::f32;
  EXPECT_EQ(refusal(kernel, other), "needs bf16, this is f32");

  kernel = entry();
  kernel.min_sm = 100;
  EXPECT_EQ(refusal(kernel, r), "needs sm_100, this is sm_90");

  kernel = entry();
  kernel.min_cudnn = 91800;
  EXPECT_EQ(refusal(kernel, r), "");
  other = r;
  other.device.cudnn = 91002;
  EXPECT_EQ(refusal(kernel, other), "needs cuDNN 9.18, found 9.10");
  other.device.cudnn = 0;
  EXPECT_EQ(refusal(kernel, other), "needs cuDNN 9.18, found none");

  kernel = entry();
  kernel.deterministic = false;
  EXPECT_EQ(refusal(kernel, r), "");
  other = r;
  other.deterministic = true;
  EXPECT_EQ(refusal(kernel, other), "does not repeat bit for bit");

  kernel = entry();
  kernel.capturable = false;
  EXPECT_EQ(refusal(kernel, r), "");
  other = r;
  other.graph = true;
  EXPECT_EQ(refusal(kernel, other), "cannot be captured in a CUDA graph");

  kernel = entry();
  kernel.has_backward = false;
  EXPECT_EQ(refusal(kernel, r), "has no backward");
  other = r;
  other.training = false;
  EXPECT_EQ(refusal(kernel, other), "");

  kernel = entry();
  kernel.refuses = [](const KernelRequest& x) { return x.hidden % 64 == 0 ? nullptr : "odd widths"; };
  EXPECT_EQ(refusal(kernel, r), "");
  other = r;
  other.hidden = 5121;
  EXPECT_EQ(refusal(kernel, other), "odd widths");
}

TEST(KernelList, APreferredKernelGoesFirstWhereItFits) {
  KernelRequest r = request_27b();
  r.prefer = "plain";
  for (const SelectedKernel& chosen : select_kernels(r).ops) EXPECT_EQ(short_name(*chosen.kernel), "plain");
  r.prefer_for_products = false;
  EXPECT_STREQ(select_kernels(r)[Op::matmul].kernel->name, "matmul.cublaslt");
  EXPECT_EQ(short_name(*select_kernels(r)[Op::gated_delta_forward].kernel), "plain");
  r.prefer = "nothing of this name";
  EXPECT_STREQ(select_kernels(r)[Op::matmul].kernel->name, "matmul.cublaslt");
}

TEST(KernelList, DeterministicSelectsOnlyDeterministicKernels) {
  KernelRequest r = request_27b();
  r.deterministic = true;
  for (const SelectedKernel& chosen : select_kernels(r).ops) {
    EXPECT_TRUE(chosen.kernel->deterministic) << chosen.kernel->name;
  }
}

TEST(KernelList, OpsThatTheModelDoesNotCallAreNotAsked) {
  KernelRequest r = request_27b();
  r.attention = {};
  r.training = false;
  const KernelSelection selection = select_kernels(r);
  EXPECT_FALSE(selection[Op::attention_forward].used);
  EXPECT_FALSE(selection[Op::attention_forward].slow());
  EXPECT_FALSE(selection[Op::gated_delta_backward].used);
  EXPECT_FALSE(selection[Op::adamw].used);
  EXPECT_TRUE(selection[Op::gated_delta_forward].used);
  EXPECT_TRUE(selection[Op::cross_entropy].used);
  r = request_27b();
  r.gdn = {};
  EXPECT_FALSE(select_kernels(r)[Op::gdn_prologue_forward].used);
  EXPECT_TRUE(select_kernels(r)[Op::attention_backward].used);
}

TEST(KernelList, UnsupportedHeadsAndDtypesAreRefused) {
  const auto refused = [](const KernelRequest& r, const std::string& op, const std::string& shape) {
    try {
      select_kernels(r);
      FAIL() << "selected kernels for " << shape;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find(op), std::string::npos) << error.what();
      EXPECT_NE(error.where().find(shape), std::string::npos) << error.where();
    }
  };
  KernelRequest r = request_27b();
  r.attention.head_dim = 512;
  refused(r, "qk_norm_rope_forward", "24 query and 4 key heads of 512");
  r = request_27b();
  r.gdn.key_dim = 257;
  refused(r, "gdn_prologue_forward", "16 key heads of 257");
  r = request_27b();
  r.storage = DType::f64;
  refused(r, "embedding_forward", "f64 on sm_90");
  r.device = {};  // the cpu table has f64
  EXPECT_FALSE(select_kernels(r).slow());
}

/// The scratch that an op announces is that of the stream's kernel, not of the table in general.
TEST(KernelList, ScratchIsThatOfTheChosenKernel) {
  const auto null = make_null_device(Target::cuda);
  Arena arena;
  const Tensor a = arena.take(DType::bf16, {64, 64});
  for (const KernelEntry* kernel : kernels_of(Target::cuda, Op::matmul)) {
    KernelChoice choice{};
    choice[static_cast<size_t>(Op::matmul)] = kernel;
    const auto stream = null->make_stream("plan", choice);
    ops::matmul(*stream, a, a, a, {});
    const size_t expected =
        kernel->scratch ? kernel->scratch({.storage = DType::bf16, .rows = 64, .columns = 64}) : 0;
    EXPECT_EQ(stream->scratch_wish(), expected) << kernel->name;
    EXPECT_EQ(&kernel_of(*stream, Op::matmul), kernel);
  }
  // A stream without a choice runs plain kernels.
  const auto stream = null->make_stream("plan");
  EXPECT_STREQ(kernel_of(*stream, Op::matmul).name, "matmul.plain");
}

}  // namespace
}  // namespace deltatune
