// Attention by cuDNN, through the header-only cudnn-frontend: the one file that includes it.
//
// Forward alone: deltatune's own backward is faster, repeats bit for bit and needs no workspace, and
// cuDNN 9.19's gives NaN in rows of many one-token documents unless its workspace is cleared first
// (bench/NOTES.md).
//
// Rows are packed: tensors are [documents, heads, length, K] with strides inside a row of tokens and an
// offset for each document, causal from the top left inside each. Missing documents have length 0.
#include "cuda/cudnn/attention.h"

#include <cudnn_frontend.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "cuda/cuda_ops.h"
#include "cuda/cudnn/library.h"
#include "cuda/device.h"
#include "ops/attention_cuda_scratch.h"

namespace deltatune::cuda {
namespace {

namespace fe = cudnn_frontend;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

/// What it was tried with, give or take; packed rows were wrong in several versions before.
constexpr int oldest_version = 91800;

/// Names of the tensors of a graph.
enum Uid : int64_t {
  q_uid = 1,
  k_uid,
  v_uid,
  o_uid,
  statistics_uid,
  lengths_uid,
  q_offsets_uid,
  k_offsets_uid,
  v_offsets_uid,
  h_offsets_uid
};
using Pointers = std::unordered_map<int64_t, void*>;

/// Everything a plan depends on.
struct Key {
  int64_t tokens, documents, length;
  int64_t query_heads, kv_heads, head_dim;
  auto operator<=>(const Key&) const = default;
};

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(ErrorKind::internal, std::string("cuDNN: ") + cudnnGetErrorString(status), what,
              "please report it with the command line");
}

/// A graph with its plan; usable says whether cuDNN has one within `workspace` bytes.
class Plan {
 public:
  Plan(cudnnHandle_t handle, const Key& key, size_t workspace) : key_(key) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const TensorPtr lengths = table(lengths_uid, key.documents, fe::DataType_t::INT32);
    q_offsets_ = table(q_offsets_uid, key.documents + 1, fe::DataType_t::INT64);
    k_offsets_ = table(k_offsets_uid, key.documents + 1, fe::DataType_t::INT64);
    v_offsets_ = table(v_offsets_uid, key.documents + 1, fe::DataType_t::INT64);
    h_offsets_ = table(h_offsets_uid, key.documents + 1, fe::DataType_t::INT64);
    build(lengths);
    refused_ = refusal(handle, workspace);
  }

  bool usable() const { return refused_.empty(); }
  const std::string& refused() const { return refused_; }

  void run(cudnnHandle_t handle, Pointers& pointers, std::byte* workspace, const std::string& what) const {
    auto status = graph_.execute(handle, pointers, workspace);
    if (status.is_good()) return;
    throw Error(ErrorKind::internal, "cuDNN: " + status.get_message(), what,
                "please report it with the command line");
  }

 private:
  /// Makes the plan; why cuDNN has none, or empty.
  std::string refusal(cudnnHandle_t handle, size_t workspace) {
    for (const auto& step :
         {std::function([&] { return graph_.validate(); }),
          std::function([&] { return graph_.build_operation_graph(handle); }),
          std::function([&] { return graph_.create_execution_plans({fe::HeurMode_t::A}); }),
          std::function([&] { return graph_.check_support(handle); }),
          std::function([&] { return graph_.build_plans(handle); })}) {
      auto status = step();
      if (status.is_bad()) return status.get_message();
    }
    const auto wanted = static_cast<size_t>(graph_.get_workspace_size());
    if (wanted <= workspace) return {};
    return "its plan wants " + std::to_string(wanted) + " bytes of scratch, " + std::to_string(workspace) +
           " are planned";
  }

  TensorPtr table(int64_t uid, int64_t count, fe::DataType_t type) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(uid)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(type));
  }
  AttentionShape shape() const { return {key_.query_heads, key_.kv_heads, key_.head_dim, 0}; }
  /// Shape of [T, heads, width] in rows of `row` elements.
  void lay_out(fe::graph::Tensor_attributes& x, int64_t uid, int64_t heads, int64_t width, int64_t row,
               const TensorPtr& offsets) const {
    x.set_uid(uid)
        .set_dim({key_.documents, heads, key_.length, width})
        .set_stride({key_.length * row, width, row, 1})
        .set_ragged_offset(offsets);
  }
  void lay_out_statistics(fe::graph::Tensor_attributes& x) const {
    lay_out(x, statistics_uid, key_.query_heads, 1, key_.query_heads, h_offsets_);
    x.set_data_type(fe::DataType_t::FLOAT);
  }
  TensorPtr tensor(int64_t uid, int64_t heads, int64_t row, const TensorPtr& offsets) {
    fe::graph::Tensor_attributes x;
    lay_out(x, uid, heads, key_.head_dim, row, offsets);
    return graph_.tensor(x);
  }
  TensorPtr queries(int64_t uid) {
    return tensor(uid, key_.query_heads, key_.query_heads * key_.head_dim, q_offsets_);
  }
  TensorPtr keys() { return tensor(k_uid, key_.kv_heads, key_.kv_heads * key_.head_dim, k_offsets_); }
  TensorPtr values() { return tensor(v_uid, key_.kv_heads, shape().columns(), v_offsets_); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(key_.head_dim)); }

  void output(const TensorPtr& x, int64_t uid, int64_t heads, const TensorPtr& offsets) const {
    lay_out(*x, uid, heads, key_.head_dim, heads * key_.head_dim, offsets);
    x->set_output(true);
  }

  void build(const TensorPtr& lengths) {
    const auto [o, statistics] = graph_.sdpa(queries(q_uid), keys(), values(),
                                             fe::graph::SDPA_attributes()
                                                 .set_name("attention")
                                                 .set_generate_stats(true)
                                                 .set_attn_scale(scale())
                                                 .set_causal_mask(true)
                                                 .set_padding_mask(true)
                                                 .set_seq_len_q(lengths)
                                                 .set_seq_len_kv(lengths));
    output(o, o_uid, key_.query_heads, q_offsets_);
    lay_out_statistics(*statistics);
    statistics->set_output(true);
  }

  Key key_;
  mutable fe::graph::Graph graph_;  // its execute() is const only in part
  TensorPtr q_offsets_, k_offsets_, v_offsets_, h_offsets_;
  std::string refused_;
};

void* address(CTensor x) {
  return const_cast<std::byte*>(x.data);
}
void* v_of(CTensor proj_TN, const AttentionShape& shape) {
  return const_cast<std::byte*>(proj_TN.data) +
         static_cast<size_t>(shape.v_column()) * size_of(proj_TN.dtype);
}

/// The pieces of the scratch, and the tables as cuDNN gets them.
struct Memory {
  AttentionTables tables{};
  float* statistics;
  std::byte* workspace;

  Memory(std::byte* scratch, const CudnnAttentionScratch& pieces, Pointers& pointers) {
    const auto table = [&](int i) { return scratch + static_cast<size_t>(i) * cudnn_table_bytes; };
    tables = {reinterpret_cast<int32_t*>(table(0)), reinterpret_cast<int64_t*>(table(1)),
              reinterpret_cast<int64_t*>(table(2)), reinterpret_cast<int64_t*>(table(3)),
              reinterpret_cast<int64_t*>(table(4))};
    statistics = reinterpret_cast<float*>(scratch + pieces.tables);
    workspace = scratch + pieces.tables + pieces.statistics;
    pointers[lengths_uid] = tables.lengths;
    pointers[q_offsets_uid] = tables.q_offsets;
    pointers[k_offsets_uid] = tables.k_offsets;
    pointers[v_offsets_uid] = tables.v_offsets;
    pointers[h_offsets_uid] = tables.h_offsets;
    pointers[statistics_uid] = statistics;
  }
};

}  // namespace

struct AttentionPlans::Impl {
  std::mutex mutex;
  cudnnHandle_t handle = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans;

  std::string refused;  // why plan_of() returned nullptr last

  /// nullptr: cuDNN does not do it. The lock is held by the caller.
  const Plan* plan_of(const Key& key, size_t workspace) {
    if (cudnn_library().version < oldest_version) {
      refused = cudnn_library().version ? "it is older than 9.18" : cudnn_library().why;
      return nullptr;
    }
    if (!handle) check_cudnn(cudnnCreate(&handle), "cudnnCreate");
    auto& plan = plans[key];
    if (!plan) plan = std::make_unique<Plan>(handle, key, workspace);
    refused = plan->refused();
    return plan->usable() ? plan.get() : nullptr;
  }
};

AttentionPlans::AttentionPlans() : impl_(std::make_unique<Impl>()) {}

AttentionPlans::~AttentionPlans() {
  impl_->plans.clear();
  if (impl_->handle) cudnnDestroy(impl_->handle);
}

std::string AttentionPlans::refused() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->refused;
}

bool AttentionPlans::forward(Stream& stream, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                             CTensor proj_TN, const Segments& segments, AttentionShape shape,
                             AttentionBucket bucket) {
  const int64_t tokens = q_THK.dim(0);
  const CudnnAttentionScratch pieces = attention_forward_cudnn_pieces(shape, tokens);
  const Key key{tokens, bucket.documents, bucket.length, shape.query_heads, shape.kv_heads, shape.head_dim};
  const std::lock_guard lock(impl_->mutex);
  const Plan* const plan = impl_->plan_of(key, pieces.workspace);
  if (!plan) return false;
  Pointers pointers{{q_uid, address(q_THK)},
                    {k_uid, address(k_TGK)},
                    {v_uid, v_of(proj_TN, shape)},
                    {o_uid, address(o_THK)}};
  const Memory memory(stream.scratch(pieces.total()), pieces, pointers);
  fill_attention_tables(stream, memory.tables, segments, shape, bucket.documents);
  check_cudnn(cudnnSetStream(impl_->handle, native(stream)), "attention_forward");
  plan->run(impl_->handle, pointers, memory.workspace, "attention_forward, stream " + stream.name());
  if (lse_HT.count()) {
    transpose_f32(stream, reinterpret_cast<float*>(lse_HT.data), memory.statistics, tokens,
                  shape.query_heads);
  }
  return true;
}

}  // namespace deltatune::cuda
