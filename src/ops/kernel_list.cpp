// The entries of the list, and select_kernels().
#include "ops/kernel_list.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"
#include "base/thread_pool.h"
#include "ops/attention_cuda_scratch.h"
#include "ops/delta_net_cuda_scratch.h"
#include "ops/delta_net_scratch.h"
#include "ops/scratch.h"

namespace deltatune {
namespace {

// Scratch of the cpu kernels.
namespace cpu {
size_t matmul(const OpShape& s) {
  return scratch::matmul(Target::cpu, s.storage);
}
size_t qk_norm_rope_forward(const OpShape& s) {
  return scratch::qk_norm_rope_forward(Target::cpu, s.storage, s.attention);
}
size_t qk_norm_rope_backward(const OpShape& s) {
  return scratch::qk_norm_rope_backward(Target::cpu, s.storage, s.rows, s.attention);
}
size_t attention_forward(const OpShape& s) {
  return scratch::attention_forward(Target::cpu, s.storage, s.attention);
}
size_t attention_backward(const OpShape& s) {
  return scratch::attention_backward(Target::cpu, s.storage, s.rows, s.attention);
}
size_t gdn_prologue_forward(const OpShape& s) {
  return gdn_prologue_forward_scratch(s.gdn, compute_dtype(s.storage), thread_count());
}
size_t gdn_prologue_backward(const OpShape& s) {
  return gdn_prologue_backward_scratch(s.gdn, compute_dtype(s.storage), thread_count());
}
size_t gated_delta_forward(const OpShape& s) {
  return gated_delta_forward_scratch(s.gdn, compute_dtype(s.storage), thread_count());
}
size_t gated_delta_backward(const OpShape& s) {
  return gated_delta_backward_scratch(s.gdn, compute_dtype(s.storage), thread_count());
}
size_t gated_rmsnorm_backward(const OpShape& s) {
  return gated_rmsnorm_backward_scratch(s.gdn, compute_dtype(s.storage), s.rows);
}
size_t cross_entropy(const OpShape& s) {
  return scratch::cross_entropy(Target::cpu, s.rows);
}
size_t sum_squares(const OpShape& s) {
  return scratch::sum_squares(Target::cpu, s.rows);
}
}  // namespace cpu

// Scratch and requirements of the plain cuda kernels.
namespace plain {
size_t rmsnorm_backward(const OpShape& s) {
  return scratch::rmsnorm_backward(Target::cuda, s.storage, s.rows, s.columns);
}
size_t qk_norm_rope_backward(const OpShape& s) {
  return scratch::qk_norm_rope_backward(Target::cuda, s.storage, s.rows, s.attention);
}
size_t attention_backward(const OpShape& s) {
  return scratch::attention_backward(Target::cuda, s.storage, s.rows, s.attention);
}
size_t gdn_prologue_backward(const OpShape& s) {
  return gdn_prologue_backward_cuda_scratch(s.gdn, s.rows);
}
size_t gated_delta_backward(const OpShape& s) {
  return gated_delta_backward_cuda_scratch(s.gdn);
}
size_t gated_rmsnorm_backward(const OpShape& s) {
  return gated_rmsnorm_backward_cuda_scratch(s.gdn, s.rows);
}
size_t cross_entropy(const OpShape& s) {
  return scratch::cross_entropy(Target::cuda, s.rows);
}
size_t sum_squares(const OpShape& s) {
  return scratch::sum_squares(Target::cuda, s.rows);
}

const char* attention_heads(const KernelRequest& r) {
  return r.attention.head_dim <= 256 ? nullptr : "attention heads are wider than 256";
}
const char* gdn_heads(const KernelRequest& r) {
  return std::max(r.gdn.key_dim, r.gdn.value_dim) <= 256 ? nullptr : "delta-rule heads are wider than 256";
}
const char* gdn_prologue(const KernelRequest& r) {
  return r.gdn.conv_width <= 4 ? gdn_heads(r) : "the short convolution is wider than 4";
}
const char* norm_width(const KernelRequest& r) {
  return r.hidden <= 10240 ? nullptr : "the hidden size is above 10240";
}
}  // namespace plain

size_t library_cap(const OpShape&) {
  return scratch::cuda_library_cap;
}

// Scratch and requirements of the tensor-core kernels.
namespace mma {
size_t attention_forward(const OpShape& s) {
  return attention_forward_mma_scratch(s.max_chunks);
}
size_t attention_backward(const OpShape& s) {
  return attention_backward_mma_scratch(s.attention, s.rows, s.max_chunks);
}
size_t gated_delta_backward(const OpShape& s) {
  return GdnBackwardScratch(s.gdn, s.rows, s.max_chunks, s.max_documents).bytes();
}
size_t gated_delta_forward(const OpShape& s) {
  return GdnForwardScratch(s.gdn, s.max_chunks, s.max_documents).bytes();
}

/// KiB of shared memory that a block may have (CUDA C++ Programming Guide, "Compute Capabilities").
int shared_kib(int sm) {
  if (sm >= 90 && sm < 120) return 227;
  return sm == 80 || sm == 87 ? 163 : 99;
}
const char* attention_heads(const KernelRequest& r) {
  const int64_t dim = r.attention.head_dim;
  if (dim != 64 && dim != 128 && dim != 256) return "needs attention heads of 64, 128 or 256";
  const int needed = dim == 256 ? 210 : dim == 128 ? 114 : 66;
  return needed <= shared_kib(r.device.sm) ? nullptr : "needs more shared memory for heads of this size";
}
const char* wide_attention_heads(const KernelRequest& r) {
  if (r.device.sm != 90) return "is made for sm_90";
  return r.attention.head_dim == 256 ? nullptr : "needs attention heads of 256";
}
const char* gdn_heads(const KernelRequest& r) {
  if (r.gdn.key_dim != 128 || r.gdn.value_dim != 128) return "needs delta-rule heads of 128";
  if (r.gdn.ratio() > 3) return "needs 1 to 3 value heads a key head";
  return shared_kib(r.device.sm) >= 113 ? nullptr : "needs 113 KiB of shared memory";
}
const char* gdn_backward(const KernelRequest& r) {
  const int sm = r.device.sm;
  if (sm == 86 || sm == 89 || sm >= 120) return "needs 163 KiB of shared memory a block";
  return gdn_heads(r);
}
}  // namespace mma

// Scratch and requirements of the byte-bound kernels that have rows copied to shared memory by the engine of
// sm_90.
namespace bulk {
size_t gdn_prologue_backward(const OpShape& s) {
  return gdn_prologue_backward_bulk_scratch(s.gdn, s.rows);
}
const char* gdn_prologue(const KernelRequest& r) {
  if (r.device.sm != 90) return "is made for sm_90";
  if (r.gdn.key_dim != 128 || r.gdn.value_dim != 128) return "needs delta-rule heads of 128";
  if (r.gdn.conv_width != 4) return "needs a short convolution of 4";
  return r.gdn.columns() % 8 == 0 ? nullptr : "needs rows of the projection of a multiple of 16 bytes";
}
}  // namespace bulk

// What the kernel wants that spreads the rotary part of a head over all lanes of a warp.
namespace spread {
const char* attention_heads(const KernelRequest& r) {
  if (r.attention.head_dim != 256) return "needs attention heads of 256";
  return r.attention.rotary_dim == 64 ? nullptr : "needs a rotary part of 64";
}
}  // namespace spread

// Scratch and requirements of cuDNN's attention.
namespace cudnn {
size_t attention_forward(const OpShape& s) {
  return attention_forward_cudnn_scratch(s.attention, s.rows);
}
const char* attention(const KernelRequest& r) {
  static_assert(cudnn_max_documents == 64);
  if (r.max_documents > cudnn_max_documents) return "holds at most 64 documents a row (max_documents)";
  return mma::attention_heads(r);
}
}  // namespace cudnn

constexpr KernelSpeed slow = KernelSpeed::plain, fast = KernelSpeed::fast, only = KernelSpeed::only;
constexpr bool bf16_only = true;
constexpr Target host = Target::cpu, gpu = Target::cuda;

// clang-format off
constexpr KernelEntry list[] = {
    // The cpu table: one kernel an op.
    {"embedding_forward.cpu", Op::embedding_forward, host, only},
    {"embedding_backward.cpu", Op::embedding_backward, host, only},
    {"embedding_part_forward.cpu", Op::embedding_part_forward, host, only},
    {"embedding_part_backward.cpu", Op::embedding_part_backward, host, only},
    {"rmsnorm_forward.cpu", Op::rmsnorm_forward, host, only},
    {"rmsnorm_backward.cpu", Op::rmsnorm_backward, host, only},
    {"add_rmsnorm_forward.cpu", Op::add_rmsnorm_forward, host, only},
    {"add_rmsnorm_backward.cpu", Op::add_rmsnorm_backward, host, only},
    {"matmul.cpu", Op::matmul, host, only, nullptr, cpu::matmul},
    {"qk_norm_rope_forward.cpu", Op::qk_norm_rope_forward, host, only, nullptr, cpu::qk_norm_rope_forward},
    {"qk_norm_rope_backward.cpu", Op::qk_norm_rope_backward, host, only, nullptr, cpu::qk_norm_rope_backward},
    {"attention_forward.cpu", Op::attention_forward, host, only, nullptr, cpu::attention_forward},
    {"attention_backward.cpu", Op::attention_backward, host, only, nullptr, cpu::attention_backward},
    {"sigmoid_gate_forward.cpu", Op::sigmoid_gate_forward, host, only},
    {"sigmoid_gate_backward.cpu", Op::sigmoid_gate_backward, host, only},
    {"gdn_prologue_forward.cpu", Op::gdn_prologue_forward, host, only, nullptr, cpu::gdn_prologue_forward},
    {"gdn_prologue_backward.cpu", Op::gdn_prologue_backward, host, only, nullptr, cpu::gdn_prologue_backward},
    {"gated_delta_forward.cpu", Op::gated_delta_forward, host, only, nullptr, cpu::gated_delta_forward},
    {"gated_delta_backward.cpu", Op::gated_delta_backward, host, only, nullptr, cpu::gated_delta_backward},
    {"gated_rmsnorm_forward.cpu", Op::gated_rmsnorm_forward, host, only},
    {"gated_rmsnorm_backward.cpu", Op::gated_rmsnorm_backward, host, only, nullptr, cpu::gated_rmsnorm_backward},
    {"swiglu_forward.cpu", Op::swiglu_forward, host, only},
    {"swiglu_backward.cpu", Op::swiglu_backward, host, only},
    {"gather_rows.cpu", Op::gather_rows, host, only},
    {"scatter_rows.cpu", Op::scatter_rows, host, only},
    {"cross_entropy.cpu", Op::cross_entropy, host, only, nullptr, cpu::cross_entropy},
    {"sum_squares.cpu", Op::sum_squares, host, only, nullptr, cpu::sum_squares},
    {"grad_scale.cpu", Op::grad_scale, host, only},
    {"adamw.cpu", Op::adamw, host, only},
    {"fill.cpu", Op::fill, host, only},
    {"fill_normal.cpu", Op::fill_normal, host, only},
    {"cast.cpu", Op::cast, host, only},
    {"add.cpu", Op::add, host, only},

    // The cuda table. A fast kernel comes before the plain one of its op. Byte-bound ops have one kernel each,
    // near the bandwidth of a copy (bench/NOTES.md), or one more for the models' head sizes.
    {"embedding_forward.plain", Op::embedding_forward, gpu, only},
    {"embedding_backward.plain", Op::embedding_backward, gpu, only},
    {"embedding_part_forward.plain", Op::embedding_part_forward, gpu, only},
    {"embedding_part_backward.plain", Op::embedding_part_backward, gpu, only},
    {"rmsnorm_forward.plain", Op::rmsnorm_forward, gpu, only, plain::norm_width},
    {"rmsnorm_backward.plain", Op::rmsnorm_backward, gpu, only, plain::norm_width, plain::rmsnorm_backward},
    {"add_rmsnorm_forward.plain", Op::add_rmsnorm_forward, gpu, only, plain::norm_width},
    {"add_rmsnorm_backward.plain", Op::add_rmsnorm_backward, gpu, only, plain::norm_width, plain::rmsnorm_backward},
    {"matmul.cublaslt", Op::matmul, gpu, fast, nullptr, library_cap},
    {"matmul.plain", Op::matmul, gpu, slow},
    {"qk_norm_rope_forward.spread", Op::qk_norm_rope_forward, gpu, fast, spread::attention_heads, nullptr, bf16_only},
    {"qk_norm_rope_forward.plain", Op::qk_norm_rope_forward, gpu, only, plain::attention_heads},
    {"qk_norm_rope_backward.spread", Op::qk_norm_rope_backward, gpu, fast, spread::attention_heads,
     plain::qk_norm_rope_backward, bf16_only},
    {"qk_norm_rope_backward.plain", Op::qk_norm_rope_backward, gpu, only, plain::attention_heads,
     plain::qk_norm_rope_backward},
    {"attention_forward.cudnn", Op::attention_forward, gpu, fast, cudnn::attention, cudnn::attention_forward,
     bf16_only, 90, 91800, false, false},
    {"attention_forward.wgmma", Op::attention_forward, gpu, fast, mma::wide_attention_heads,
     mma::attention_forward, bf16_only, 90},
    {"attention_forward.mma", Op::attention_forward, gpu, fast, mma::attention_heads, mma::attention_forward,
     bf16_only},
    {"attention_forward.plain", Op::attention_forward, gpu, slow, plain::attention_heads},
    {"attention_backward.wgmma", Op::attention_backward, gpu, fast, mma::wide_attention_heads,
     mma::attention_backward, bf16_only, 90},
    {"attention_backward.mma", Op::attention_backward, gpu, fast, mma::attention_heads, mma::attention_backward,
     bf16_only},
    {"attention_backward.plain", Op::attention_backward, gpu, slow, plain::attention_heads,
     plain::attention_backward},
    {"sigmoid_gate_forward.plain", Op::sigmoid_gate_forward, gpu, only},
    {"sigmoid_gate_backward.plain", Op::sigmoid_gate_backward, gpu, only},
    {"gdn_prologue_forward.bulk", Op::gdn_prologue_forward, gpu, fast, bulk::gdn_prologue, nullptr, bf16_only, 90},
    {"gdn_prologue_forward.plain", Op::gdn_prologue_forward, gpu, only, plain::gdn_prologue},
    {"gdn_prologue_backward.bulk", Op::gdn_prologue_backward, gpu, fast, bulk::gdn_prologue,
     bulk::gdn_prologue_backward, bf16_only, 90},
    {"gdn_prologue_backward.plain", Op::gdn_prologue_backward, gpu, only, plain::gdn_prologue,
     plain::gdn_prologue_backward},
    {"gated_delta_forward.mma", Op::gated_delta_forward, gpu, fast, mma::gdn_heads, mma::gated_delta_forward,
     bf16_only},
    {"gated_delta_forward.plain", Op::gated_delta_forward, gpu, slow, plain::gdn_heads},
    {"gated_delta_backward.mma", Op::gated_delta_backward, gpu, fast, mma::gdn_backward,
     mma::gated_delta_backward, bf16_only},
    {"gated_delta_backward.plain", Op::gated_delta_backward, gpu, slow, plain::gdn_heads,
     plain::gated_delta_backward},
    {"gated_rmsnorm_forward.plain", Op::gated_rmsnorm_forward, gpu, only, plain::gdn_heads},
    {"gated_rmsnorm_backward.plain", Op::gated_rmsnorm_backward, gpu, only, plain::gdn_heads,
     plain::gated_rmsnorm_backward},
    {"swiglu_forward.plain", Op::swiglu_forward, gpu, only},
    {"swiglu_backward.plain", Op::swiglu_backward, gpu, only},
    {"gather_rows.plain", Op::gather_rows, gpu, only},
    {"scatter_rows.plain", Op::scatter_rows, gpu, only},
    {"cross_entropy.plain", Op::cross_entropy, gpu, only, nullptr, plain::cross_entropy},
    {"sum_squares.plain", Op::sum_squares, gpu, only, nullptr, plain::sum_squares},
    {"grad_scale.plain", Op::grad_scale, gpu, only},  // one thread's work
    {"adamw.plain", Op::adamw, gpu, only},
    {"fill.plain", Op::fill, gpu, only},
    {"fill_normal.plain", Op::fill_normal, gpu, only},
    {"cast.plain", Op::cast, gpu, only},
    {"add.plain", Op::add, gpu, only},
};
// clang-format on

bool attention_op(Op op) {
  return op >= Op::qk_norm_rope_forward && op <= Op::sigmoid_gate_backward;
}
bool gdn_op(Op op) {
  return op >= Op::gdn_prologue_forward && op <= Op::gated_rmsnorm_backward;
}
bool training_op(Op op) {
  return std::string_view(name_of(op)).ends_with("_backward") || op == Op::scatter_rows ||
         op == Op::sum_squares || op == Op::grad_scale || op == Op::adamw;
}

std::string version_text(int cudnn) {
  return cudnn == 0 ? "none" : format("{}.{}", cudnn / 10000, cudnn / 100 % 100);
}

/// What the kernels of an op look at, for a message.
std::string describe(const KernelRequest& r, Op op) {
  std::string text = name_of(r.storage);
  if (r.device.target == Target::cuda) text += format(" on sm_{}", r.device.sm);
  if (attention_op(op))
    text += format(", {} query and {} key heads of {}", r.attention.query_heads, r.attention.kv_heads,
                   r.attention.head_dim);
  if (gdn_op(op))
    text += format(", {} key heads of {} and {} value heads of {}", r.gdn.key_heads, r.gdn.key_dim,
                   r.gdn.value_heads, r.gdn.value_dim);
  return text;
}

SelectedKernel select_one(const KernelRequest& request, Op op) {
  SelectedKernel out;
  out.used = uses(request, op);
  if (!out.used) {
    out.kernel = &plain_kernel(request.device.target, op);
    return out;
  }
  std::vector<const KernelEntry*> kernels = kernels_of(request.device.target, op);
  if (op != Op::matmul || request.prefer_for_products) {
    std::stable_partition(kernels.begin(), kernels.end(),
                          [&](const KernelEntry* kernel) { return short_name(*kernel) == request.prefer; });
  }
  for (const KernelEntry* kernel : kernels) {
    const std::string why = refusal(*kernel, request);
    if (why.empty()) {
      out.kernel = kernel;
      return out;
    }
    out.refused += format("{}{}: {}", out.refused.empty() ? "" : "; ", kernel->name, why);
  }
  throw Error(ErrorKind::usage, format("no kernel of {} can serve this model", name_of(op)),
              describe(request, op), out.refused + "; run it on the CPU with device: cpu");
}

}  // namespace

std::span<const KernelEntry> kernel_list() {
  return list;
}

std::vector<const KernelEntry*> kernels_of(Target target, Op op) {
  std::vector<const KernelEntry*> out;
  for (const KernelEntry& kernel : list) {
    if (kernel.target == target && kernel.op == op) out.push_back(&kernel);
  }
  DELTATUNE_ASSERT(!out.empty());
  return out;
}

const KernelEntry* find_kernel(std::string_view name) {
  for (const KernelEntry& kernel : list) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

const KernelEntry& plain_kernel(Target target, Op op) {
  // Asked by every op wrapper of a stream without a choice: no search.
  static const auto table = [] {
    std::array<std::array<const KernelEntry*, static_cast<size_t>(Op::count)>, 2> out{};
    for (const KernelEntry& kernel : list)
      out[static_cast<size_t>(kernel.target)][static_cast<size_t>(kernel.op)] = &kernel;
    return out;
  }();
  return *table[static_cast<size_t>(target)][static_cast<size_t>(op)];
}

std::string short_name(const KernelEntry& kernel) {
  const std::string name = kernel.name;
  return name.substr(name.find('.') + 1);
}

std::string refusal(const KernelEntry& kernel, const KernelRequest& r) {
  if (kernel.target != r.device.target) return "is for another machine";
  if (r.device.target == Target::cuda) {
    if (r.storage != DType::f32 && r.storage != DType::bf16)
      return format("{} is not supported", name_of(r.storage));
    if (kernel.bf16_only && r.storage != DType::bf16)
      return format("needs bf16, this is {}", name_of(r.storage));
    if (r.device.sm < kernel.min_sm) return format("needs sm_{}, this is sm_{}", kernel.min_sm, r.device.sm);
    if (r.device.cudnn < kernel.min_cudnn)
      return format("needs cuDNN {}, found {}", version_text(kernel.min_cudnn), version_text(r.device.cudnn));
  }
  if (r.deterministic && !kernel.deterministic) return "does not repeat bit for bit";
  if (r.graph && !kernel.capturable) return "cannot be captured in a CUDA graph";
  if (r.training && !kernel.has_backward) return "has no backward";
  const char* why = kernel.refuses ? kernel.refuses(r) : nullptr;
  return why ? why : "";
}

bool uses(const KernelRequest& request, Op op) {
  if (attention_op(op) && request.attention.query_heads == 0) return false;
  if (gdn_op(op) && request.gdn.value_heads == 0) return false;
  return request.training || !training_op(op);
}

KernelChoice KernelSelection::choice() const {
  KernelChoice out{};
  for (size_t i = 0; i < ops.size(); ++i) out[i] = ops[i].kernel;
  return out;
}

bool KernelSelection::slow() const {
  return std::any_of(ops.begin(), ops.end(), [](const SelectedKernel& op) { return op.slow(); });
}

KernelSelection select_kernels(const KernelRequest& request) {
  KernelSelection out;
  out.request = request;
  for (size_t i = 0; i < out.ops.size(); ++i) out.ops[i] = select_one(request, static_cast<Op>(i));
  return out;
}

const KernelEntry& kernel_of(const Stream& stream, Op op) {
  const KernelEntry* chosen = stream.choice()[static_cast<size_t>(op)];
  return chosen ? *chosen : plain_kernel(stream.device().target(), op);
}

void require_scratch(Stream& stream, Op op, const OpShape& shape) {
  const KernelEntry& kernel = kernel_of(stream, op);
  if (kernel.scratch) stream.require_scratch(kernel.scratch(shape));
}

}  // namespace deltatune
