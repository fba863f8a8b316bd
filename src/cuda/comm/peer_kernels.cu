// Handshakes, the clock of waits, and sums in rank order.
#include <string>

#include "cuda/comm/peer_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/ptx/system.cuh"

namespace deltatune::cuda {
namespace {

constexpr unsigned all_lanes = 0xffffffffU;
constexpr unsigned pause_ns = 64;
constexpr int pauses_per_look = 64;  // at the host's word, which lies behind PCIe

__global__ __launch_bounds__(max_peers) void handshake_kernel(const Handshake h, uint32_t call) {
  HandshakeState* state = h.state;
  if (*static_cast<volatile uint32_t*>(&state->failed) != 0) return;
  const int peer = static_cast<int>(threadIdx.x);
  const bool other = peer < h.world_size && peer != h.rank;
  const uint64_t turn = *static_cast<volatile uint64_t*>(&state->turn) + 1;
  uint64_t seen = turn;
  bool abandoned = false;
  if (other) {
    __threadfence_system();
    ptx::store_release_system(h.flags[peer] + h.rank, turn);
    const uint64_t* mine = h.flags[h.rank] + peer;
    const uint64_t begin = ptx::nanoseconds();
    for (int pause = 0; (seen = ptx::load_acquire_system(mine)) < turn; ++pause) {
      if (pause % pauses_per_look == pauses_per_look - 1) {
        abandoned = *static_cast<volatile uint32_t*>(&h.report->abandon) != 0;
        if (abandoned || ptx::nanoseconds() - begin > h.timeout_ns) break;
      }
      __nanosleep(pause_ns);
    }
  }
  const unsigned missing = __ballot_sync(all_lanes, seen < turn);
  const unsigned left = __ballot_sync(all_lanes, other && seen == peer_left);
  const bool given_up = __any_sync(all_lanes, abandoned) != 0;
  if (peer != 0) return;
  state->turn = turn;
  if (missing == 0 && left == 0) return;
  state->failed = 1;
  h.report->call = call;
  h.report->missing = left != 0 ? left : missing;
  __threadfence_system();
  *static_cast<volatile uint32_t*>(&h.report->reason) = left != 0  ? HandshakeReport::left
                                                        : given_up ? HandshakeReport::abandoned
                                                                   : HandshakeReport::timed_out;
}

__global__ __launch_bounds__(max_peers) void farewell_kernel(const Handshake h) {
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < h.world_size && peer != h.rank) ptx::store_release_system(h.flags[peer] + h.rank, peer_left);
}

__global__ __launch_bounds__(1) void begin_wait_kernel(HandshakeState* state) {
  state->wait_began = ptx::nanoseconds();
}

__global__ __launch_bounds__(1) void end_wait_kernel(HandshakeState* state, HandshakeReport* report) {
  const uint64_t now = ptx::nanoseconds();
  state->waited += now - state->wait_began;
  *static_cast<volatile uint64_t*>(&report->waited) = state->waited;
}

__global__ __launch_bounds__(1) void begin_call_kernel(HandshakeState* state, HandshakeReport* report,
                                                       uint32_t call) {
  *static_cast<volatile uint32_t*>(&report->call) = call;
  *static_cast<volatile uint64_t*>(&report->calls_begun) = ++state->turn;
}

__global__ __launch_bounds__(1) void end_call_kernel(HandshakeState* state, HandshakeReport* report) {
  *static_cast<volatile uint64_t*>(&report->calls_ended) = state->turn;
}

constexpr int threads = 256;
// Enough to keep the memory busy, and few enough to leave multiprocessors to a matrix product.
constexpr unsigned most_blocks = 264;

template <class In>
struct Parts {
  const In* of[max_peers];
};

template <class Out>
__device__ Out widened(Out x) {
  return x;
}
template <class Out>
__device__ Out widened(device_bf16 x) {
  return __bfloat162float(x);
}

// Elements that move in one access.
template <class T, int width>
struct alignas(sizeof(T) * width) Pack {
  T x[width];
};

/// `packs` of `width` elements from element 0 on. `to` may be one of the parts: each thread reads its
/// elements before it writes them.
template <class Out, class In, int width, bool add>
__global__ __launch_bounds__(threads) void sum_parts_kernel(Out* to, const Parts<In> parts, int count,
                                                            int64_t packs) {
  const int64_t stride = int64_t{gridDim.x} * threads;
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < packs; i += stride) {
    Pack<Out, width> sum;
    const auto first = reinterpret_cast<const Pack<In, width>*>(parts.of[0])[i];
#pragma unroll
    for (int k = 0; k < width; ++k) sum.x[k] = widened<Out>(first.x[k]);
    for (int r = 1; r < count; ++r) {
      const auto next = reinterpret_cast<const Pack<In, width>*>(parts.of[r])[i];
#pragma unroll
      for (int k = 0; k < width; ++k) sum.x[k] += widened<Out>(next.x[k]);
    }
    if (add) {
      const auto before = reinterpret_cast<const Pack<Out, width>*>(to)[i];
#pragma unroll
      for (int k = 0; k < width; ++k) sum.x[k] = before.x[k] + sum.x[k];
    }
    reinterpret_cast<Pack<Out, width>*>(to)[i] = sum;
  }
}

template <class Out, class In, bool add>
void sum_parts(Stream& stream, Tensor to, std::span<const CTensor> tensors) {
  constexpr int width = 16 / sizeof(Out);
  auto addresses = reinterpret_cast<uintptr_t>(to.data);
  bool aligned = addresses % 16 == 0;
  Parts<In> parts{};
  for (size_t r = 0; r < tensors.size(); ++r) {
    parts.of[r] = pointer<In>(tensors[r]);
    aligned = aligned && reinterpret_cast<uintptr_t>(parts.of[r]) % (width * sizeof(In)) == 0;
  }
  const int count = static_cast<int>(tensors.size());
  const int64_t packs = aligned ? to.count() / width : 0;
  const auto blocks = [](int64_t n) {
    const unsigned wanted = blocks_for(n, threads);
    return wanted < most_blocks ? wanted : most_blocks;
  };
  if (packs > 0) {
    launch(stream, {"sum over ranks", to}, sum_parts_kernel<Out, In, width, add>, blocks(packs), threads, 0,
           pointer<Out>(to), parts, count, packs);
  }
  const int64_t done = packs * width;
  const int64_t rest = to.count() - done;
  if (rest == 0) return;
  for (int r = 0; r < count; ++r) parts.of[r] += done;
  launch(stream, {"sum over ranks", to}, sum_parts_kernel<Out, In, 1, add>, blocks(rest), threads, 0,
         pointer<Out>(to) + done, parts, count, rest);
}

template <class Out, class In>
void sum_parts(Stream& stream, Tensor to, std::span<const CTensor> parts, bool add) {
  add ? sum_parts<Out, In, true>(stream, to, parts) : sum_parts<Out, In, false>(stream, to, parts);
}

}  // namespace

void launch_handshake(Stream& stream, const Handshake& handshake, uint32_t call) {
  launch(stream, "handshake of ranks", handshake_kernel, 1, max_peers, 0, handshake, call);
}

void launch_farewell(Stream& stream, const Handshake& handshake) {
  launch(stream, "farewell to ranks", farewell_kernel, 1, max_peers, 0, handshake);
}

void launch_begin_wait(Stream& stream, const Handshake& handshake) {
  launch(stream, "clock of waits", begin_wait_kernel, 1, 1, 0, handshake.state);
}

void launch_end_wait(Stream& stream, const Handshake& handshake) {
  launch(stream, "clock of waits", end_wait_kernel, 1, 1, 0, handshake.state, handshake.report);
}

void launch_begin_call(Stream& stream, const Handshake& handshake, uint32_t call) {
  launch(stream, "count of calls", begin_call_kernel, 1, 1, 0, handshake.state, handshake.report, call);
}

void launch_end_call(Stream& stream, const Handshake& handshake) {
  launch(stream, "count of calls", end_call_kernel, 1, 1, 0, handshake.state, handshake.report);
}

void launch_sum_parts(Stream& stream, Tensor to, std::span<const CTensor> parts, bool add) {
  DELTATUNE_ASSERT(!parts.empty() && parts.size() <= max_peers);
  if (to.count() == 0) return;
  const DType in = parts[0].dtype;
  for (const CTensor& part : parts) DELTATUNE_ASSERT(part.count() == to.count() && part.dtype == in);
  if (to.dtype == DType::f32 && in == DType::f32) return sum_parts<float, float>(stream, to, parts, add);
  if (to.dtype == DType::f32 && in == DType::bf16)
    return sum_parts<float, device_bf16>(stream, to, parts, add);
  if (to.dtype == DType::f64 && in == DType::f64) return sum_parts<double, double>(stream, to, parts, add);
  throw Error(ErrorKind::internal,
              std::string("no sum over ranks of ") + name_of(in) + " in " + name_of(to.dtype));
}

}  // namespace deltatune::cuda
