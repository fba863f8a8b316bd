// The products of the fast gated_delta backward: dq, dk, dv, dg and dbeta from Z and R of the reverse scan,
// all chunks at once. Formulas: gdn_backward.cuh.
//
// A block of 8 warps walks (chunk, key head) tiles; inside a tile it loops over the value heads of the key
// head, whose dq and dk add up in registers. Warp (wm, wn) holds rows 16 wm .. and 16 (3 - wm) .. (so that
// triangles are shared out evenly) and a quarter of the columns of every product. Stages of a head:
//     1. U = K S; W over V, T' beta over T; dv; terms of dbeta and dg that need U or W
//     2. D = T' (beta W)
//     3. dO S^T, dO D^T, dU S^T, Z D^T in one pass over dv
//     4. D R^T, <R, S>
// and of a tile: K K^T before the heads, the products with w and M behind them.
#pragma once

#include "cuda/kernels/gdn_backward_inputs.cuh"

namespace deltatune::cuda::gdn_backward {

template <int Ratio, bool Bulk>
class ChunkBlock {
  /// C tiles of 16 x 8 of this warp: [row block][column block].
  using Wide = float[2][4][4];    // 64 x 128
  using Square = float[2][2][4];  // 64 x 64
  /// Values of this thread's rows: [row block][upper or lower half].
  using Rows = float[2][2];

 public:
  __device__ ChunkBlock(const Call& call, unsigned char* memory)
      : call_(call),
        in_(call, memory),
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0)) {}

  __device__ void run() {
    const int step = static_cast<int>(gridDim.x);
    int tile = static_cast<int>(blockIdx.x), turn = 0;
    bool more = find(turn, tile);
    __syncthreads();
    if (!more) return;
    const Place& first = in_.floats().places[turn];
    in_.copy_keys(first);
    in_.copy_state(first, 0);
    if (!Bulk) in_.copy_leaving(first, 0);
    in_.copy_values(first, 0);
    in_.copy_z(first, 0);
    in_.copy_dout(first, 0);
    for (; more; turn ^= 1) {
      tile += step;
      more = find(turn ^ 1, tile);
      place_ = &in_.floats().places[turn];
      run_tile(in_.floats().places[turn ^ 1], more);
    }
  }

 private:
  /// Enters a tile for the block, which needs a barrier after it; false where there are no more.
  __device__ bool find(int turn, int tile) {
    Place place;
    const bool found = place.find(call_, tile);
    if (threadIdx.x == 0) in_.floats().places[turn] = place;
    return found;
  }
  __device__ int warp() const { return warp_; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ int wm() const { return warp() / 4; }
  __device__ int wn() const { return warp() % 4; }
  /// First row of row block m of this warp.
  __device__ int row_block(int m) const { return 16 * (m == 0 ? wm() : 3 - wm()); }
  /// Row of this thread.
  __device__ int row(int m, int half) const { return row_block(m) + 8 * half + lane() / 4; }
  /// First of the two columns of this thread in column block q of a square.
  __device__ int column(int q) const { return 16 * wn() + 8 * q + 2 * (lane() % 4); }

  __device__ void run_tile(const Place& next, bool more) {
    const Place& at = *place_;
    in_.wait_keys(at);
    in_.swap_states();
    in_.wait_head(at);
    __syncthreads();
    key_products();
    Wide dq = {}, dk = {};
    Square weights = {}, mixing = {};
#pragma unroll 1
    for (int h = 0; h < Ratio; ++h) {
      // Where the inputs after this head's come from.
      const bool last = h + 1 == Ratio;
      const int after_head = last ? 0 : h + 1;
      const bool copies = !last || more;
      if (h > 0) {
        in_.swap_states();
        in_.wait_head(at);
        __syncthreads();
        store_sums_of(call_, at, in_.floats().sums, at.key_head * Ratio + h - 1, warp());
        if (!Bulk) {
          in_.copy_state(at, h);
          in_.copy_leaving(at, h);
          in_.copy_values(at, h);
          in_.wait_head(at);
          __syncthreads();
        }
      }
      if (Bulk) {
        in_.copy_leaving(at, h);
        if (copies) in_.copy_state(last ? next : at, after_head);
      }
      Rows later = {}, earlier = {}, beta = {};
      read_state(h, later, beta);
      in_.wait_dout(at);
      __syncthreads();
      {
        Wide product = {};
        if (wm() == 0) {
          solve<0>(product);
        } else {
          solve<1>(product);
        }
        if (!Bulk) __syncthreads();
        store_d(product);
      }
      __syncthreads();
      if (Bulk && copies) in_.copy_values(last ? next : at, after_head);
      pair_products(h, dq, dk, weights, mixing, later, beta);
      in_.wait_leaving(at);
      __syncthreads();
      if (copies) {
        in_.copy_z(last ? next : at, after_head);
        in_.copy_dout(last ? next : at, after_head);
      }
      leaving_products(h, dk, earlier);
      store_sums(later, earlier, beta);
    }
    __syncthreads();
    store_sums_of(call_, at, in_.floats().sums, at.key_head * Ratio + Ratio - 1, warp());
    store_squares(weights, mixing);
    __syncthreads();
    if (wm() == 0) {
      mix<0>(dq, dk);
    } else {
      mix<1>(dq, dk);
    }
    store_rows(call_.dq, dq);
    store_rows(call_.dk, dk);
    __syncthreads();
    if (!more) return;
    in_.copy_keys(next);
    if (!Bulk) {
      in_.copy_state(next, 0);
      in_.copy_leaving(next, 0);
      in_.copy_values(next, 0);
    }
  }

  /// q_i . k_j and k_i . k_j, at most 1, in fp16.
  __device__ void key_products() {
    const __half* const scores =
        call_.scores + (static_cast<int64_t>(place_->c) * call_.key_heads + place_->key_head) * chunk * chunk;
    uint32_t qk[2][2][2] = {};
    each_pair([&](int m, int q, int half) {
      if (16 * wn() > row_block(m)) return;
      qk[m][q][half] = *reinterpret_cast<const uint32_t*>(scores + row(m, half) * chunk + column(q));
    });
    Square kk = {};
#pragma unroll
    for (int ks = 0; ks < 8; ++ks) {
      uint32_t b[4];
      in_.keys().b(b, 16 * wn(), 2 * ks);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t a[4];
        in_.keys().a(a, row_block(m), 2 * ks);
        multiply(kk[m][0], kk[m][1], a, b);
      }
    }
    each_pair([&](int m, int q, int half) {
      pair(0, m, q, half) = qk[m][q][half];
      pair(1, m, q, half) = ptx::pack_f16(kk[m][q][2 * half], kk[m][q][2 * half + 1]);
    });
  }
  /// Calls f(row block, column block, half) for each pair of neighbouring columns of a Square.
  template <class F>
  __device__ static void each_pair(F&& f) {
#pragma unroll
    for (int i = 0; i < 8; ++i) f(i / 4, i / 2 % 2, i % 2);
  }
  /// q_i . k_j (0) or k_i . k_j (1): in shared memory where there is place, to save registers.
  __device__ uint32_t& pair(int which, int m, int q, int half) {
    const int i = 8 * which + 4 * m + 2 * q + half;
    if constexpr (Bulk) return in_.floats().pairs[i][threadIdx.x];
    return pairs_[i];
  }

  /// Stage 1.
  __device__ void read_state(int h, Rows& later, Rows& beta_terms) {
    const Place& at = *place_;
    const float *const G = in_.floats().gates[h][0], *const beta = in_.floats().gates[h][1];
#pragma unroll
    for (int m = 0; m < 2; ++m) {  // T' beta over T
      if (16 * wn() > row_block(m)) continue;
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int j = column(q);
        const float2 Gj = *reinterpret_cast<const float2*>(G + j);
        const float2 bj = *reinterpret_cast<const float2*>(beta + j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = row(m, half);
          const uint32_t place = in_.inverse().pair(row_block(m) + 8 * half, 2 * wn() + q);
          const uint32_t t = ptx::load_shared(place);
          ptx::store_shared(place, ptx::pack_bf16(low(t) * decay(G[i], Gj.x, i >= j) * bj.x,
                                                  high(t) * decay(G[i], Gj.y, i >= j + 1) * bj.y));
        }
      }
    }
    Wide u = {};
    if (at.enters) {
#pragma unroll
      for (int ks = 0; ks < 8; ++ks) {
        uint32_t b[2][4];
#pragma unroll
        for (int q = 0; q < 2; ++q) in_.state().b_transposed(b[q], 16 * ks, 4 * wn() + 2 * q);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          uint32_t a[4];
          in_.keys().a(a, row_block(m), 2 * ks);
#pragma unroll
          for (int q = 0; q < 2; ++q) multiply(u[m][2 * q], u[m][2 * q + 1], a, b[q]);
        }
      }
    }
    bf16* const dv = call_.dv ? call_.dv + call_.value_row(at.first_token, at.key_head * Ratio + h) +
                                    32 * wn() + 8 * (lane() % 4)
                              : nullptr;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float gam[2], b[2];
      uint32_t dv_out[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        gam[half] = ptx::exp2(G[row(m, half)]);
        b[half] = beta[row(m, half)];
      }
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        uint32_t zs[4], vs[4];
        in_.z().a(zs, row_block(m), 4 * wn() + 2 * q);
        in_.values().a(vs, row_block(m), 4 * wn() + 2 * q);
        __syncwarp();  // W takes the place of V
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int half = i % 2, right = i / 2;
          const float u0 = gam[half] * u[m][2 * q + right][2 * half];
          const float u1 = gam[half] * u[m][2 * q + right][2 * half + 1];
          const float z0 = low(zs[i]), z1 = high(zs[i]);
          const float w0 = low(vs[i]) - u0, w1 = high(vs[i]) - u1;
          later[m][half] -= b[half] * (u0 * z0 + u1 * z1);
          beta_terms[m][half] += z0 * w0 + z1 * w1;
          ptx::store_shared(in_.values().pair(row_block(m) + 8 * half, 4 * wn() + 2 * q + right),
                            ptx::pack_bf16(w0, w1));
          dv_out[half][2 * q + right] = ptx::pack_bf16(b[half] * z0, b[half] * z1);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        transpose_quad(dv_out[half]);
        if (dv && row(m, half) < at.length) {
          store_16(dv + static_cast<int64_t>(row(m, half)) * call_.value_heads * dim, dv_out[half]);
        }
      }
    }
    if (Bulk) ptx::fence_bulk_copies();
  }
  __device__ static void store_16(bf16* to, const uint32_t (&x)[4]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(x[0], x[1], x[2], x[3]);
  }

  /// Stage 2: product = T' beta W. M: wm.
  template <int M>
  __device__ void solve(Wide& product) {
#pragma unroll
    for (int ks = 0; ks < 4 - M; ++ks) {
      uint32_t b[2][4];
#pragma unroll
      for (int q = 0; q < 2; ++q) in_.values().b_transposed(b[q], 16 * ks, 4 * wn() + 2 * q);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if (ks > (m == 0 ? M : 3 - M)) continue;
        uint32_t a[4];
        in_.inverse().a(a, row_block(m), 2 * ks);
#pragma unroll
        for (int q = 0; q < 2; ++q) multiply(product[m][2 * q], product[m][2 * q + 1], a, b[q]);
      }
    }
  }
  __device__ void store_d(const Wide& product) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ptx::store_shared(in_.d().pair(row_block(m) + 8 * half, 4 * wn() + q),
                            ptx::pack_bf16(product[m][q][2 * half], product[m][q][2 * half + 1]));
        }
      }
    }
  }

  /// The products of stage 3.
  template <bool Enters>
  __device__ void multiply_pairs_of(const uint32_t (&du)[2][2], Wide& product, Wide& dk, Square& dp,
                                    Square& zd) {
#pragma unroll
    for (int ks = 0; ks < 8; ++ks) {
      uint32_t s[2][4], b[4];
      if (Enters) {
#pragma unroll
        for (int q = 0; q < 2; ++q) in_.state().b(s[q], 32 * wn() + 16 * q, 2 * ks);
      }
      in_.d().b(b, 16 * wn(), 2 * ks);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t o[4], zs[4];
        in_.dout().a(o, row_block(m), 2 * ks);
        in_.z().a(zs, row_block(m), 2 * ks);
        multiply(dp[m][0], dp[m][1], o, b);
        multiply(zd[m][0], zd[m][1], zs, b);
        if (Enters) {
#pragma unroll
          for (int i = 0; i < 4; ++i) zs[i] = multiply_pairs(zs[i], du[m][i % 2]);
#pragma unroll
          for (int q = 0; q < 2; ++q) {
            multiply(product[m][2 * q], product[m][2 * q + 1], o, s[q]);
            multiply(dk[m][2 * q], dk[m][2 * q + 1], zs, s[q]);
          }
        }
      }
    }
  }

  /// Stage 3.
  __device__ void pair_products(int h, Wide& dq, Wide& dk, Square& weights, Square& mixing, Rows& later,
                                Rows& beta_terms) {
    const float *const G = in_.floats().gates[h][0], *const beta = in_.floats().gates[h][1];
    const float scale = rsqrtf(static_cast<float>(dim));
    Wide product = {};
    Square dp = {}, zd = {};
    uint32_t du[2][2];  // -gam beta, twice
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = -ptx::exp2(G[row(m, half)]) * beta[row(m, half)];
        du[m][half] = ptx::pack_bf16(x, x);
      }
    }
    if (place_->enters) {
      multiply_pairs_of<true>(du, product, dk, dp, zd);
    } else {
      multiply_pairs_of<false>(du, product, dk, dp, zd);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float f[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) f[half] = scale * ptx::exp2(G[row(m, half)]);
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        uint32_t qs[4];
        in_.queries().a(qs, row_block(m), 4 * wn() + 2 * q);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int half = i % 2, right = i / 2;
          const float x0 = f[half] * product[m][2 * q + right][2 * half];
          const float x1 = f[half] * product[m][2 * q + right][2 * half + 1];
          dq[m][2 * q + right][2 * half] += x0;
          dq[m][2 * q + right][2 * half + 1] += x1;
          later[m][half] += x0 * low(qs[i]) + x1 * high(qs[i]);
        }
      }
    }
    weigh_pairs(h, dp, zd, weights, mixing, later, beta_terms);
  }

  /// w and M of one head from dO D^T and Z D^T, and the pairs' terms of dg and dbeta.
  __device__ void weigh_pairs(int h, const Square& dp, const Square& zd, Square& weights, Square& mixing,
                              Rows& later, Rows& beta_terms) {
    const float *const G = in_.floats().gates[h][0], *const beta = in_.floats().gates[h][1];
    const float scale = rsqrtf(static_cast<float>(dim));
    float columns[2][2] = {};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (16 * wn() > row_block(m)) continue;
#pragma unroll
      for (int q = 0; q < 2; ++q) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = row(m, half);
          const float Gi = G[i], bi = beta[i];
          const float2 qks = widen_f16(pair(0, m, q, half)), kks = widen_f16(pair(1, m, q, half));
#pragma unroll
          for (int right = 0; right < 2; ++right) {
            const int j = column(q) + right, r = 2 * half + right;
            const float gam = decay(Gi, G[j], i >= j);
            const float w = scale * gam * dp[m][q][r];
            const float n = i > j ? gam * zd[m][q][r] : 0.0f;
            const float qk = right ? qks.y : qks.x;
            const float kk = right ? kks.y : kks.x;
            weights[m][q][r] += w;
            mixing[m][q][r] -= bi * n;
            beta_terms[m][half] -= kk * n;
            const float term = (i > j ? w * qk : 0.0f) - bi * kk * n;
            later[m][half] += term;
            columns[q][right] += term;
          }
        }
      }
    }
#pragma unroll
    for (int q = 0; q < 2; ++q) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        float sum = columns[q][right];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane() / 4 == 0) in_.floats().sums.columns[wm()][column(q) + right] = sum;
      }
    }
  }

  /// Stage 4.
  __device__ void leaving_products(int h, Wide& dk, Rows& earlier) {
    float states = 0;
    if (place_->leaves) {
      const float* const G = in_.floats().gates[h][0];
      const uint32_t lanes =
          in_.leaving() +
          static_cast<uint32_t>(((lane() / 8 % 2) * 16 + lane() / 16 + 4 * wn()) * 128 + lane() % 8 * 16);
      Wide product = {};
#pragma unroll
      for (int ks = 0; ks < 8; ++ks) {
        uint32_t b[2][4];
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          ptx::ldmatrix_x4_trans(b[q], lanes + static_cast<uint32_t>((2 * ks * 16 + 2 * q) * 128));
        }
        uint32_t s[4];
        in_.state().b(s, 32 * wn() + 16 * wm(), 2 * ks);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t r = wm() == 0 ? b[0][i] : b[1][i];
          states += low(s[i]) * low(r) + high(s[i]) * high(r);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          uint32_t a[4];
          in_.d().a(a, row_block(m), 2 * ks);
#pragma unroll
          for (int q = 0; q < 2; ++q) multiply(product[m][2 * q], product[m][2 * q + 1], a, b[q]);
        }
      }
      const float total = G[chunk - 1];
      states = place_->enters ? states * ptx::exp2(total) : 0.0f;  // else S is not there
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        float f[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) f[half] = ptx::exp2(total - G[row(m, half)]);
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          uint32_t ks[4];
          in_.keys().a(ks, row_block(m), 4 * wn() + 2 * q);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int half = i % 2, right = i / 2;
            const float x0 = f[half] * product[m][2 * q + right][2 * half];
            const float x1 = f[half] * product[m][2 * q + right][2 * half + 1];
            dk[m][2 * q + right][2 * half] += x0;
            dk[m][2 * q + right][2 * half + 1] += x1;
            earlier[m][half] += x0 * low(ks[i]) + x1 * high(ks[i]);
          }
        }
      }
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) states += __shfl_xor_sync(0xffffffffu, states, step);
    if (lane() == 0) in_.floats().sums.states[warp()] = states;
  }

  /// The rows' sums of this warp's columns.
  __device__ void store_sums(const Rows& later, const Rows& earlier, const Rows& beta) {
    ChunkSums& sums = in_.floats().sums;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x[3] = {later[m][half], earlier[m][half], beta[m][half]};
#pragma unroll
        for (float& sum : x) {
          sum += __shfl_xor_sync(0xffffffffu, sum, 1);
          sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        }
        if (lane() % 4 == 0) {
          sums.later[wn()][row(m, half)] = x[0];
          sums.earlier[wn()][row(m, half)] = x[1];
          sums.beta[wn()][row(m, half)] = x[2];
        }
      }
    }
  }

  /// w and M, summed over the heads, on and below the diagonal.
  __device__ void store_squares(const Square& w, const Square& m_sum) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (16 * wn() > row_block(m)) continue;
#pragma unroll
      for (int q = 0; q < 2; ++q) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = row_block(m) + 8 * half, piece = 2 * wn() + q;
          ptx::store_shared(in_.weights().pair(r, piece),
                            ptx::pack_bf16(w[m][q][2 * half], w[m][q][2 * half + 1]));
          ptx::store_shared(in_.mixing().pair(r, piece),
                            ptx::pack_bf16(m_sum[m][q][2 * half], m_sum[m][q][2 * half + 1]));
        }
      }
    }
  }

  /// dq += w K;  dk += w^T Q + (M + M^T) K. M: wm.
  template <int M>
  __device__ void mix(Wide& dq, Wide& dk) {
    const Panel<chunk> w = in_.weights(), mixed = in_.mixing();
#pragma unroll
    for (int ks = 0; ks < 4; ++ks) {
      uint32_t k[2][4], q[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        in_.keys().b_transposed(k[i], 16 * ks, 4 * wn() + 2 * i);
        in_.queries().b_transposed(q[i], 16 * ks, 4 * wn() + 2 * i);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t a[4];
        if (ks <= (m == 0 ? M : 3 - M)) {
          w.a(a, row_block(m), 2 * ks);
#pragma unroll
          for (int i = 0; i < 2; ++i) multiply(dq[m][2 * i], dq[m][2 * i + 1], a, k[i]);
          mixed.a(a, row_block(m), 2 * ks);
#pragma unroll
          for (int i = 0; i < 2; ++i) multiply(dk[m][2 * i], dk[m][2 * i + 1], a, k[i]);
        }
        if (ks >= (m == 0 ? M : 3 - M)) {
          w.a_transposed(a, 16 * ks, row_block(m) / 8);
#pragma unroll
          for (int i = 0; i < 2; ++i) multiply(dk[m][2 * i], dk[m][2 * i + 1], a, q[i]);
          mixed.a_transposed(a, 16 * ks, row_block(m) / 8);
#pragma unroll
          for (int i = 0; i < 2; ++i) multiply(dk[m][2 * i], dk[m][2 * i + 1], a, k[i]);
        }
      }
    }
  }

  __device__ void store_rows(bf16* __restrict__ out, const Wide& x) const {
    if (!out) return;
    out += call_.key_row(place_->first_token, place_->key_head) + 32 * wn() + 8 * (lane() % 4);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pairs[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) pairs[q] = ptx::pack_bf16(x[m][q][2 * half], x[m][q][2 * half + 1]);
        transpose_quad(pairs);
        if (row(m, half) < place_->length) {
          store_16(out + static_cast<int64_t>(row(m, half)) * call_.key_heads * dim, pairs);
        }
      }
    }
  }

  const Call& call_;
  ChunkInputs<Ratio, Bulk> in_;
  int warp_;
  const Place* place_ = nullptr;
  uint32_t pairs_[Bulk ? 1 : 16];
};

/// Grid: at most as many blocks as fit the GPU.
template <int Ratio, bool Bulk>
__global__ void __launch_bounds__(ChunkTile<Bulk>::threads, 1)
    chunk_kernel(const __grid_constant__ Call call) {
  ChunkBlock<Ratio, Bulk> block(call, dynamic_shared<unsigned char>());
  block.run();
}

}  // namespace deltatune::cuda::gdn_backward
