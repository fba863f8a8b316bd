// gated_delta backward on tensor cores: what the chunks need without the state (gdn_inverse.cuh), the reverse
// scan over the chunks (gdn_backward_state.cuh), then the products of all chunks at once
// (gdn_backward_chunk.cuh). Formulas: gdn_backward.cuh.
//
// For bf16, dk = dv = 128 and 1 to 3 value heads per key head. Grids depend on the GPU and on bounds of the
// row alone; lengths are read on the device. Sums have a fixed order.
#include "cuda/cuda_ops.h"
#include "cuda/kernels/gdn_backward_chunk.cuh"
#include "cuda/kernels/gdn_backward_state.cuh"
#include "cuda/kernels/gdn_inverse.cuh"
#include "cuda/kernels/sums.cuh"
#include "cuda/tensor_map.h"

namespace deltatune::cuda {
namespace gdn_backward {
namespace {

/// Whether the bulk copy engine and the shared memory of sm_90 are there.
bool copies_in_bulk(const cudaDeviceProp& device) {
  return device.major >= 9 && device.sharedMemPerBlockOptin >= static_cast<size_t>(chunk_shared<3, true>);
}

/// What the bulk copy engine has to know of the inputs.
void set_maps(Call& call, const CTensor& q_THK, const CTensor& k_THK, const CTensor& v_THV,
              const CTensor& do_THV, const CTensor& states_CHKV, const CTensor& z_THV,
              const CTensor& T_CHII) {
  call.q_map = head_tiles(q_THK);
  call.k_map = head_tiles(k_THK);
  call.v_map = head_tiles(v_THV);
  call.d_o_map = head_tiles(do_THV);
  call.z_map = head_tiles(z_THV);
  call.states_map = head_tiles(states_CHKV.reshaped({states_CHKV.count() / dim, 1, dim}));
  call.inverse_map = head_tiles(T_CHII.reshaped({T_CHII.count() / chunk, 1, chunk}));
}

template <bool Bulk>
void launch_scan(const Stream& stream, const Call& call, const Shape& values, int multiprocessors) {
  const int64_t items = int64_t{2} * call.max_documents * call.value_heads, fit = 2 * multiprocessors;
  launch_shared(stream, {"gated_delta_backward: scan", values}, state_kernel<Bulk>,
                dim3(blocks_for(items < fit ? items : fit, 1)), dim3(StateTile::threads), StateTile::shared,
                call);
}

template <int Ratio, bool Bulk>
void launch_chunks(const Stream& stream, const Call& call, const Shape& values, int multiprocessors) {
  const int64_t tiles = static_cast<int64_t>(call.num_chunks) * call.key_heads;
  launch_shared(stream, {"gated_delta_backward: products", values}, chunk_kernel<Ratio, Bulk>,
                dim3(blocks_for(tiles < multiprocessors ? tiles : multiprocessors, 1)),
                dim3(ChunkTile<Bulk>::threads), chunk_shared<Ratio, Bulk>, call);
}

template <bool Bulk>
void launch_all(const Stream& stream, const Call& call, const Shape& values, int multiprocessors) {
  launch_scan<Bulk>(stream, call, values, multiprocessors);
  switch (call.ratio) {
    case 1:
      return launch_chunks<1, Bulk>(stream, call, values, multiprocessors);
    case 2:
      return launch_chunks<2, Bulk>(stream, call, values, multiprocessors);
    case 3:
      return launch_chunks<3, Bulk>(stream, call, values, multiprocessors);
    default:
      throw Error(ErrorKind::internal,
                  "no CUDA kernel for " + std::to_string(call.ratio) + " value heads per key head",
                  "gated_delta_backward_mma", "please report it with the command line");
  }
}

}  // namespace
}  // namespace gdn_backward

void gated_delta_backward_mma(Stream& stream, Tensor dq_THK, Tensor dk_THK, Tensor dv_THV, Tensor dg_TH,
                              Tensor dbeta_TH, CTensor do_THV, CTensor states_CHKV, CTensor q_THK,
                              CTensor k_THK, CTensor v_THV, CTensor g_TH, CTensor beta_TH,
                              const Segments& segments, GdnShape shape) {
  using namespace gdn_backward;
  const int64_t num_chunks = segments.chunks.dim(0), max_documents = segments.cu_seqlens.dim(0) - 1;
  const GdnBackwardScratch layout(shape, q_THK.dim(0), num_chunks, max_documents);
  std::byte* const scratch = stream.scratch(layout.bytes());
  const GdnPrepared prepared{scratch + layout.prepared.inverse, scratch + layout.prepared.scores,
                             reinterpret_cast<float*>(scratch + layout.prepared.gates),
                             reinterpret_cast<int32_t*>(scratch + layout.prepared.order)};
  gdn_prepare(stream, prepared, q_THK, k_THK, g_TH, beta_TH, segments, shape);

  Call call{};
  call.q = pointer<bf16>(q_THK);
  call.k = pointer<bf16>(k_THK);
  call.v = pointer<bf16>(v_THV);
  call.d_o = pointer<bf16>(do_THV);
  call.states = pointer<bf16>(states_CHKV);
  call.chunks = reinterpret_cast<const int4*>(pointer<int32_t>(segments.chunks));
  call.dq = wanted<bf16>(dq_THK);
  call.dk = wanted<bf16>(dk_THK);
  call.dv = wanted<bf16>(dv_THV);
  call.dg = wanted<float>(dg_TH);
  call.dbeta = wanted<float>(dbeta_TH);
  call.num_chunks = static_cast<int>(num_chunks);
  call.max_documents = static_cast<int>(max_documents);
  call.key_heads = static_cast<int>(shape.key_heads);
  call.value_heads = static_cast<int>(shape.value_heads);
  call.ratio = static_cast<int>(shape.ratio());
  call.inverse = static_cast<const bf16*>(prepared.inverse);
  call.scores = static_cast<const __half*>(prepared.scores);
  call.gates = prepared.gates;
  call.order = prepared.order;
  call.z = reinterpret_cast<bf16*>(scratch + layout.z);
  call.leaving = reinterpret_cast<bf16*>(scratch + layout.leaving);

  const cudaDeviceProp& device = static_cast<const CudaDevice&>(stream.device()).properties();
  if (!copies_in_bulk(device)) {
    return launch_all<false>(stream, call, v_THV.shape, device.multiProcessorCount);
  }
  set_maps(call, q_THK, k_THK, v_THV, do_THV, states_CHKV,
           CTensor{scratch + layout.z, DType::bf16, v_THV.shape},
           CTensor{scratch + layout.prepared.inverse,
                   DType::bf16,
                   {num_chunks, shape.value_heads, gdn_chunk, gdn_chunk}});
  launch_all<true>(stream, call, v_THV.shape, device.multiProcessorCount);
}

}  // namespace deltatune::cuda
