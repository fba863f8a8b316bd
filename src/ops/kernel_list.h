// The list of kernels: which implementations each op has, what each needs, and which one serves a model.
//
// An op (ops/op.h) is a row of the Kernels table; a kernel is one implementation of it. The list is data of
// the host alone - name, requirements, scratch bytes - so that `plan --device h200` selects and sizes on a
// machine without plug-in and GPU what a run selects and sizes with them. The plug-in supplies the function
// of each name (cuda/kernel_functions.cpp); a test compares the two lists.
//
// Order is preference: select() takes the first kernel of an op that the request allows. The last kernel of
// an op on the cuda target is its plain one: any shape the op is made for, f32 and bf16, right and slow. How
// to add a kernel: docs/kernels.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/kernels.h"
#include "ops/op.h"

namespace deltatune {

/// What a kernel is chosen for: the machine, the model's shapes, the run's wishes. Predicates of the list see
/// nothing else. Shapes without heads: the model has no such layer, and the ops of it are not used.
struct KernelRequest {
  DeviceFacts device = {};  ///< target, SM version, cuDNN version
  DType storage = DType::bf16;
  AttentionShape attention = {};
  GdnShape gdn = {};
  int64_t hidden = 0;        ///< D
  int64_t intermediate = 0;  ///< F
  int64_t vocabulary = 0;    ///< V
  int64_t tokens = 0;        ///< T
  int64_t max_documents = 0;
  bool training = true;        ///< false: forward only
  bool deterministic = false;  ///< only kernels that repeat bit for bit
  bool graph = false;          ///< only kernels that a CUDA graph can capture
  std::string prefer;  ///< "plain": take OP.plain before all others wherever it fits; for measurements
  bool prefer_for_products = true;  ///< false: not for matrix products
};

/// What the scratch of one call may depend on. An op fills what it has; all of it is static for a run.
struct OpShape {
  DType storage = DType::f32;
  int64_t rows = 0;     ///< tokens T, rows of logits, elements of a flat buffer
  int64_t columns = 0;  ///< width D, vocabulary V
  int64_t max_documents = 0;
  int64_t max_chunks = 0;
  AttentionShape attention = {};
  GdnShape gdn = {};
};

enum class KernelSpeed {
  plain,  ///< right and slow: a run that would use it stops unless allow_slow_kernels is set
  fast,   ///< made for the machine
  only,   ///< the op's one kernel, or its last, and good enough that no run counts as slow with it
};

/// One kernel.
struct KernelEntry {
  const char* name;  ///< "rmsnorm_forward.plain": the op's name, a dot, the kernel's
  Op op;
  Target target;
  KernelSpeed speed;
  /// Why the kernel cannot serve the request, or nullptr. Shapes only: the fields below say the rest.
  const char* (*refuses)(const KernelRequest&) = nullptr;
  /// Bytes of Stream::scratch of one call; nullptr: none. The kernel takes what this returns.
  size_t (*scratch)(const OpShape&) = nullptr;
  bool bf16_only = false;     ///< f32 storage is refused
  int min_sm = 80;            ///< 90: sm_90 or later
  int min_cudnn = 0;          ///< 91800: cuDNN 9.18 or later
  bool deterministic = true;  ///< two runs give the same bits
  bool capturable = true;     ///< may be captured in a CUDA graph
  bool has_backward = true;   ///< false: a forward kernel whose outputs no backward kernel takes
};

/// All kernels; those of one op and target together, best first.
std::span<const KernelEntry> kernel_list();
/// Those of one op, best first. Not empty.
std::vector<const KernelEntry*> kernels_of(Target target, Op op);
/// By name, or nullptr.
const KernelEntry* find_kernel(std::string_view name);
/// The last of the op's list: the plain kernel, or the only one.
const KernelEntry& plain_kernel(Target target, Op op);
/// The part of its name behind the dot: "plain".
std::string short_name(const KernelEntry& kernel);
/// Why the kernel cannot serve the request; empty: it can.
std::string refusal(const KernelEntry& kernel, const KernelRequest& request);
/// True when a model of this request calls the op.
bool uses(const KernelRequest& request, Op op);

/// What select() decided about one op.
struct SelectedKernel {
  const KernelEntry* kernel = nullptr;
  bool used = true;     ///< false: this model does not call the op
  std::string refused;  ///< "attention_forward.cudnn: needs cuDNN 9.18; ...": the better ones; may be empty
  bool slow() const { return used && kernel->speed == KernelSpeed::plain; }
};

/// A kernel for each op.
struct KernelSelection {
  KernelRequest request;
  std::array<SelectedKernel, static_cast<size_t>(Op::count)> ops;
  const SelectedKernel& operator[](Op op) const { return ops[static_cast<size_t>(op)]; }
  KernelChoice choice() const;
  bool slow() const;  ///< any op that is used runs on a plain kernel
};

/// The best kernel of each op. Throws Error{usage} naming op, shape and reasons where an op that the model
/// uses has none.
KernelSelection select_kernels(const KernelRequest& request);

/// The kernel that serves an op on this stream.
const KernelEntry& kernel_of(const Stream& stream, Op op);
/// What every op wrapper calls: announces the scratch of the stream's kernel for this call.
void require_scratch(Stream& stream, Op op, const OpShape& shape);

/// cuDNN that `plan` assumes on a machine it does not run on: what the plug-in is built with.
inline constexpr int planned_cudnn = 91900;
/// Facts of a CUDA device of compute capability sm (90: 9.0) as `plan` assumes them.
constexpr DeviceFacts planned_cuda(int sm) {
  return {Target::cuda, sm, planned_cudnn};
}

}  // namespace deltatune
