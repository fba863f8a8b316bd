// gated_delta forward on sm_90a (wgmma), bf16 storage, dk = dv = 128: the arithmetic of gated_delta_mma.cu,
// cut between warpgroups so that the chain from chunk to chunk waits for nothing but itself.
//
// A block of three warpgroups carries S of one value head through one document after another:
//   groups 0, 1: S^T, 64 rows of dv each, in registers (64 per thread). Left operands of all products are
//     registers, right operands tiles in shared memory.
//   group 2: loads K, Q, V, T and Q K^T of the chunks to come, three in flight, multiplies T and Q K^T by
//   their
//     gates, and takes the next document from the counter, longest first.
// The groups meet at two named barriers per stage: `full` (a chunk is ready) and `empty` (both have read it).
// A stage carries what its chunk is; n = 0 ends the block. Which block takes a document changes no bit of it.
#include "cuda/cuda_ops.h"
#include "cuda/kernels/gdn_scan.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tensor_map.h"

namespace deltatune::cuda {
namespace gdn {
namespace {

struct Wide {
  static constexpr int group = 128;
  static constexpr int threads = 3 * group;
  static constexpr int stages = 3;
  static constexpr int stage_bytes = 8 * tile_bytes;
  static constexpr int alignment = 1024;  ///< of a tile, for wgmma
  static constexpr int blocks = 132;      ///< at most; one fits on an SM
  static constexpr int scan_registers = 208;
  static constexpr int load_registers = 88;
  /// Named barriers.
  static constexpr int full = 1, empty = full + stages, loaders = empty + stages;
};

/// What a stage holds.
struct Header {
  int t0, n, c, h;
  int first, last;  ///< of its document
};

struct WideShared {
  static constexpr size_t bytes =
      Wide::alignment +
      Wide::stages * (Wide::stage_bytes + Gates::bytes + sizeof(Header) + sizeof(uint64_t)) + sizeof(int4);
  unsigned char* tiles;
  float* gates;
  Header* headers;
  int4* next;       ///< document, and value head in .w
  uint32_t copied;  ///< mbarriers, one per stage: K, Q and V are there

  __device__ explicit WideShared(unsigned char* memory) {
    const uint32_t address = ptx::shared_address(memory);
    tiles = memory + ((Wide::alignment - address % Wide::alignment) % Wide::alignment);
    gates = reinterpret_cast<float*>(tiles + Wide::stages * Wide::stage_bytes);
    next = reinterpret_cast<int4*>(gates + Wide::stages * Gates::bytes / sizeof(float));
    copied = ptx::shared_address(next + 1);
    headers = reinterpret_cast<Header*>(reinterpret_cast<unsigned char*>(next + 1) +
                                        Wide::stages * sizeof(uint64_t));
  }
};

struct WideStage {
  unsigned char* memory;
  Gates gates;
  uint32_t k, q, v, inverse, scores;

  __device__ WideStage(const WideShared& shared, int stage)
      : memory(shared.tiles + stage * Wide::stage_bytes), gates{shared.gates + stage * 4 * chunk} {
    k = ptx::shared_address(memory);
    q = k + 2 * tile_bytes;
    v = q + 2 * tile_bytes;
    inverse = v + 2 * tile_bytes;
    scores = inverse + tile_bytes;
  }
  __device__ unsigned char* inverse_tile() const { return memory + 6 * tile_bytes; }
  __device__ unsigned char* scores_tile() const { return memory + 7 * tile_bytes; }
};

/// T, Q K^T and gates of a chunk in registers: this thread's share of what apply() writes.
struct Prefetch {
  static constexpr int pieces = 3;
  uint4 inverse[pieces], scores[pieces];
  float log_decay, beta;

  /// Rows r and 63 - r have 9 pieces of 8 columns up to the diagonal between them: 4 threads share them, one
  /// of them has a third piece.
  static __device__ bool has(int tid, int i) { return i < 2 || (tid & 3) == 0; }
  static __device__ int row(int tid, int i) {
    const int pair = tid >> 2;
    return (tid & 3) + 4 * i <= pair >> 3 ? pair : 63 - pair;
  }
  static __device__ int piece(int tid, int i) {
    const int number = (tid & 3) + 4 * i, upper = (tid >> 5) + 1;
    return number < upper ? number : number - upper;
  }
  __device__ void load(const ScanCall& call, const Header& at, int key_head, int tid) {
    const int64_t tile = static_cast<int64_t>(at.c) * call.value_heads + at.h;
    const device_bf16* const t = call.inverse + tile * square;
    const __half* const p = call.scores + (static_cast<int64_t>(at.c) * call.key_heads + key_head) * square;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
      if (!has(tid, i)) break;
      const int from = row(tid, i) * chunk + piece(tid, i) * 8;
      inverse[i] = __ldcg(reinterpret_cast<const uint4*>(t + from));
      scores[i] = __ldcg(reinterpret_cast<const uint4*>(p + from));
    }
    if (tid < chunk) {
      log_decay = __ldcg(call.gates + tile * 2 * chunk + tid);
      beta = __ldcg(call.gates + tile * 2 * chunk + chunk + tid);
    }
  }
  /// Gam o T diag(beta), Gam o Q K^T and the gates to the stage; the loaders meet inside.
  __device__ void apply(const WideStage& stage, int tid) const {
    const Gates& gates = stage.gates;
    if (tid < chunk) {
      *gates.at(Gates::log_decay, tid) = log_decay;
      *gates.at(Gates::beta, tid) = beta;
      *gates.at(Gates::from_start, tid) = ptx::exp2(log_decay);
    }
    ptx::barrier_sync(Wide::loaders, Wide::group);
    if (tid < chunk)
      *gates.at(Gates::to_end, tid) = ptx::exp2(*gates.at(Gates::log_decay, chunk - 1) - log_decay);
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
      if (!has(tid, i)) break;
      const uint32_t at = piece_offset(row(tid, i), piece(tid, i));
      gate_piece(inverse[i], scores[i], gates, row(tid, i), piece(tid, i),
                 reinterpret_cast<uint4*>(stage.inverse_tile() + at),
                 reinterpret_cast<uint4*>(stage.scores_tile() + at));
    }
  }
};

/// The tensors that are copied in boxes.
struct Maps {
  CUtensorMap q, k, v;
};

/// Has K, Q and V of a chunk copied; the first thread of a warp each.
__device__ inline void copy_chunk(const Maps& maps, const WideStage& stage, const Header& at, int key_head,
                                  uint32_t barrier, int warp) {
  const auto copy = [&](uint32_t to, const CUtensorMap& map, int head) {
    ptx::copy_box(to, &map, 0, head, at.t0, barrier);
    ptx::copy_box(to + tile_bytes, &map, 64, head, at.t0, barrier);
  };
  if (warp == 0) {
    ptx::mbarrier_expect(barrier, 6 * tile_bytes);
    copy(stage.k, maps.k, key_head);
  }
  if (warp == 1) copy(stage.q, maps.q, key_head);
  if (warp == 2) copy(stage.v, maps.v, at.h);
}

/// Puts the next document and value head into shared memory, in two steps that each wait for one memory
/// access: taken long before it is needed. One thread's.
struct Ticket {
  int number = 0, steps = 0;

  __device__ void advance(const ScanCall& call, int tasks, int4* next) {
    if (steps == 0) number = call.next_ticket();
    if (steps == 1) {
      const int heads = static_cast<int>(call.value_heads);
      int4 document = make_int4(0, 0, 0, 0);  // .z = 0: none left
      if (number < tasks) document = call.document(number / heads);
      document.w = number % heads;
      *next = document;
    }
    ++steps;
  }
  __device__ void finish(const ScanCall& call, int tasks, int4* next) {
    while (steps < 2) advance(call, tasks, next);
    steps = 0;
  }
};

__device__ inline void load_loop(const ScanCall& call, const Maps& maps, const WideShared& shared) {
  const int tid = static_cast<int>(threadIdx.x) % Wide::group;
  const int tasks = call.documents() * static_cast<int>(call.value_heads);
  const int ratio = static_cast<int>(call.value_heads / call.key_heads);
  // Blocks above the diagonal of T and Q K^T are never written.
  for (int at = tid; at < Wide::stages * 2 * tile_bytes / 16; at += Wide::group) {
    constexpr int pieces = 2 * tile_bytes / 16;
    uint4* const tile = reinterpret_cast<uint4*>(WideStage(shared, at / pieces).inverse_tile());
    tile[at % pieces] = make_uint4(0, 0, 0, 0);
  }
  Ticket ticket;
  Prefetch next;
  int4 document = make_int4(0, 0, 0, 0);
  int done = 0, key_head = 0;  // tokens of the document
  for (int step = 0;; ++step) {
    const int now = step % Wide::stages;
    if (done >= document.z) {
      if (tid == 0) ticket.finish(call, tasks, shared.next);
      __syncwarp();
      ptx::barrier_sync(Wide::loaders, Wide::group);
      document = *shared.next;
      done = 0;
      key_head = document.w / ratio;
    } else if (tid == 0) {
      ticket.advance(call, tasks, shared.next);
    }
    const Header at{document.y + done, min(chunk, document.z - done), document.x + done / chunk, document.w,
                    done == 0,         done + chunk >= document.z};
    if (at.n > 0) next.load(call, at, key_head, tid);
    if (step >= Wide::stages) ptx::barrier_sync(Wide::empty + now, Wide::threads);
    const WideStage stage(shared, now);
    if (tid == 0) shared.headers[now] = at;
    if (tid % 32 == 0 && at.n > 0) {
      copy_chunk(maps, stage, at, key_head, shared.copied + static_cast<uint32_t>(now) * 8, tid / 32);
    }
    __syncwarp();  // the barriers below are the whole warp's
    if (at.n == 0) {
      // As in apply(): the group arrives knowing the header, not only the warp that wrote it.
      ptx::barrier_sync(Wide::loaders, Wide::group);
      ptx::barrier_sync(Wide::full + now, Wide::threads);
      return;
    }
    next.apply(stage, tid);
    ptx::fence_async_proxy();
    __syncwarp();
    ptx::barrier_arrive(Wide::full + now, Wide::threads);
    done += chunk;
  }
}

/// c (+)= a B, B a 64 x 64 tile whose rows are the columns of c.
__device__ inline void multiply_square(float (&c)[8][4], const uint32_t (&a)[4][4], uint32_t tile,
                                       bool accumulate) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    ptx::wgmma_n64(c, a[j], ptx::wgmma_rows(tile + static_cast<uint32_t>(j) * 32), accumulate || j > 0);
  }
  ptx::wgmma_commit();
}

__device__ inline void scan_loop(const ScanCall& call, const WideShared& shared, int slice) {
  const int warp = static_cast<int>(threadIdx.x) % Wide::group / 32;
  const int column = slice * 64 + warp * 16;
  const int64_t row = call.value_heads * head_dim;
  float s[16][4];
  for (int step = 0;; ++step) {
    const int now = step % Wide::stages;
    ptx::barrier_sync(Wide::full + now, Wide::threads);
    const Header& at = shared.headers[now];
    if (at.n == 0) return;
    ptx::mbarrier_wait(shared.copied + static_cast<uint32_t>(now) * 8, step / Wide::stages & 1);
    const WideStage stage(shared, now);
    const Gates gates = stage.gates;
    float u[8][4], out[8][4];
    uint32_t w[4][4];
    if (at.first) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[i][e] = 0;
      }
    }
    uint32_t a[8][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) as_left(a[i], s[2 * i], s[2 * i + 1]);
    const auto columns = [](uint32_t tile, int i) {
      return ptx::wgmma_rows(tile + static_cast<uint32_t>((i >> 2) * tile_bytes + (i & 3) * 32));
    };
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i) ptx::wgmma_n64(u, a[i], columns(stage.k, i), i > 0);
    ptx::wgmma_commit();
#pragma unroll
    for (int i = 0; i < 8; ++i) ptx::wgmma_n64(out, a[i], columns(stage.q, i), i > 0);
    ptx::wgmma_commit();
    if (call.states) {
      const int64_t entry = static_cast<int64_t>(at.c) * call.value_heads + at.h;
      device_bf16* const state = call.states + entry * head_dim * head_dim + column;
#pragma unroll
      for (int i = 0; i < 8; ++i) store_state(state, a[i], i);
    }
    uint32_t v[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::ldmatrix_x4_trans(v[i], across_address(stage.v + slice * tile_bytes, 16 * i, warp));
    }
    ptx::wgmma_wait<1>();
#pragma unroll
    for (int i = 0; i < 4; ++i) miss(w[i], v[i], u[2 * i], u[2 * i + 1], gates, 2 * i);
    if (at.last) {
#pragma unroll
      for (int i = 0; i < 4; ++i) clear_columns(w[i], 16 * i, at.n);
    }
    float d[8][4];
    ptx::wgmma_fence();
    multiply_square(d, w, stage.inverse, false);
    const float decay = *gates.at(Gates::from_start, chunk - 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][e] *= decay;
    }
    ptx::wgmma_wait<0>();
    uint32_t left[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      as_left(w[i], d[2 * i], d[2 * i + 1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 rest = gates.columns(Gates::to_end, 2 * i + half);
#pragma unroll
        for (int e = 0; e < 4; ++e) d[2 * i + half][e] *= e & 1 ? rest.y : rest.x;
      }
      as_left(left[i], d[2 * i], d[2 * i + 1]);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      ptx::wgmma_n128_t(s, left[j],
                        ptx::wgmma_columns(stage.k + static_cast<uint32_t>(j) * 16 * 128, tile_bytes), true);
    }
    ptx::wgmma_commit();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 start = gates.columns(Gates::from_start, i);
#pragma unroll
      for (int e = 0; e < 4; ++e) out[i][e] *= e & 1 ? start.y : start.x;
    }
    ptx::wgmma_fence();
    multiply_square(out, w, stage.scores, true);
    ptx::wgmma_wait<0>();
    const int64_t first_row = static_cast<int64_t>(at.t0) * call.value_heads + at.h;
    const int n = at.n;
    ptx::barrier_arrive(Wide::empty + now, Wide::threads);
    if (call.o) store_rows(call.o + first_row * head_dim + column, out, row, call.scale, n);
  }
}

__global__ void __launch_bounds__(Wide::threads, 1)
    wide_kernel(ScanCall call, const __grid_constant__ Maps maps) {
  const WideShared shared(dynamic_shared<unsigned char>());
  if (threadIdx.x < Wide::stages) ptx::mbarrier_init(shared.copied + threadIdx.x * 8, 1);
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / Wide::group;
  if (group == 2) {
    ptx::fewer_registers<Wide::load_registers>();
    load_loop(call, maps, shared);
  } else {
    ptx::more_registers<Wide::scan_registers>();
    scan_loop(call, shared, group);
  }
}

}  // namespace
}  // namespace gdn

void gated_delta_forward_wgmma(Stream& stream, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                               CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments& segments,
                               GdnShape shape) {
  const gdn::ScanCall call =
      gdn::prepare_scan(stream, o_THV, states_CHKV, q_THK, k_THK, v_THV, g_TH, beta_TH, segments, shape);
  const int64_t tasks = call.max_documents * shape.value_heads;
  launch_shared(stream, {"gated_delta_forward_wgmma", v_THV}, gdn::wide_kernel,
                dim3(blocks_for(tasks < gdn::Wide::blocks ? tasks : gdn::Wide::blocks, 1)),
                dim3(gdn::Wide::threads), gdn::WideShared::bytes, call,
                gdn::Maps{head_tiles(q_THK), head_tiles(k_THK), head_tiles(v_THV)});
}

}  // namespace deltatune::cuda
