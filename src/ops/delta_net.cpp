// ops::gdn_prologue, gated_delta and gated_rmsnorm: shapes, costs and dispatch. Formulas: ops/delta_net.h.
//
// Counting of floating-point operations: a multiplication and an addition are one each; exp, sigmoid, sqrt
// and division count as one. gated_delta counts the chunked algorithm (Yang et al. 2024, section 3.3) on the
// chunks that this row really has, matrix products only, full squares where a triangle would do - whatever
// algorithm the selected kernel uses.
#include "ops/delta_net.h"

#include "ops/checks.h"
#include "ops/kernel_list.h"
#include "ops/op.h"

namespace deltatune::ops {
namespace {

void check_shape(const Check& check, const GdnShape& shape) {
  check.that(shape.key_heads > 0 && shape.key_dim > 0 && shape.value_dim > 0 && shape.conv_width > 0, "shape",
             "positive sizes");
  check.that(shape.value_heads > 0 && shape.value_heads % shape.key_heads == 0, "shape",
             "value_heads a multiple of key_heads");
}

void check_segments(const Check& check, const Segments& segments, int64_t tokens) {
  check.input("positions_T", segments.positions_T, DType::i32, {tokens});
  check.rank("chunks", segments.chunks, 2);
  check.input("chunks", segments.chunks, DType::i32, {segments.chunks.dim(0), 4});
  check.that(segments.num_chunks <= segments.chunks.dim(0), "num_chunks", "at most the rows of chunks");
  check.that(segments.documents() >= 1 && segments.host_cu_seqlens.back() == tokens, "host_cu_seqlens",
             "documents that cover the row");
}

/// The chunks of a row: how many, and the sums of their lengths to the powers 1 to 3.
struct ChunkSums {
  double count = 0, n = 0, n2 = 0, n3 = 0;

  explicit ChunkSums(const Segments& segments) {
    for (int64_t d = 0; d < segments.documents(); ++d) {
      const int32_t* const start = segments.host_cu_seqlens.data() + d;
      add(static_cast<double>((start[1] - start[0]) / gdn_chunk), static_cast<double>(gdn_chunk));
      const int64_t rest = (start[1] - start[0]) % gdn_chunk;
      if (rest) add(1, static_cast<double>(rest));
    }
  }
  void add(double times, double length) {
    count += times;
    n += times * length;
    n2 += times * length * length;
    n3 += times * length * length * length;
  }
};

/// Columns of proj that the prologue touches: all but z.
double prologue_columns_bytes(const CTensor& proj_TN, const GdnShape& shape) {
  if (proj_TN.empty()) return 0;
  const int64_t columns = shape.channels() + 2 * shape.value_heads;
  return static_cast<double>(proj_TN.dim(0) * columns) * static_cast<double>(size_of(proj_TN.dtype));
}

/// The z columns, of T Hv dv elements.
double z_bytes(const CTensor& proj_TN, const GdnShape& shape) {
  if (proj_TN.empty()) return 0;
  return static_cast<double>(proj_TN.dim(0) * shape.values()) * static_cast<double>(size_of(proj_TN.dtype));
}

/// States of the chunks in use.
double state_bytes(const CTensor& states_CHKV, const ChunkSums& chunks) {
  if (states_CHKV.empty()) return 0;
  return static_cast<double>(states_CHKV.bytes()) / static_cast<double>(states_CHKV.dim(0)) * chunks.count;
}

void check_states(const Check& check, const CTensor& states_CHKV, const Segments& segments, DType storage,
                  const GdnShape& shape) {
  check.rank("states_CHKV", states_CHKV, 4);
  check.input("states_CHKV", states_CHKV, storage,
              {states_CHKV.dim(0), shape.value_heads, shape.key_dim, shape.value_dim});
  check.that(states_CHKV.dim(0) >= segments.num_chunks, "states_CHKV", "an entry for each chunk");
}

OpShape op_shape(DType storage, int64_t tokens, const Segments& segments, const GdnShape& shape) {
  return {.storage = storage,
          .rows = tokens,
          .max_documents = segments.max_documents(),
          .max_chunks = segments.chunks.dim(0),
          .gdn = shape};
}

}  // namespace

void gdn_prologue_forward(Stream& stream, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH,
                          Tensor beta_TH, Tensor q_rstd_TH, Tensor k_rstd_TH, CTensor proj_TN,
                          CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H, const Segments& segments,
                          GdnShape shape) {
  const int64_t T = proj_TN.dim(0);
  const DType storage = proj_TN.dtype, compute = compute_dtype(storage);
  const Check check{"gdn_prologue_forward"};
  check_shape(check, shape);
  check_segments(check, segments, T);
  check.input("proj_TN", proj_TN, storage, {T, shape.columns()});
  check.input("conv_CW", conv_CW, storage, {shape.channels(), shape.conv_width});
  check.input("A_log_H", A_log_H, compute, {shape.value_heads});
  check.input("dt_bias_H", dt_bias_H, compute, {shape.value_heads});
  check.output("q_THK", q_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.output("k_THK", k_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.output("v_THV", v_THV, storage, {T, shape.value_heads, shape.value_dim});
  check.output("g_TH", g_TH, compute, {T, shape.value_heads});
  check.output("beta_TH", beta_TH, compute, {T, shape.value_heads});
  check.output("q_rstd_TH", q_rstd_TH, compute, {T, shape.key_heads});
  check.output("k_rstd_TH", k_rstd_TH, compute, {T, shape.key_heads});
  require_scratch(stream, Op::gdn_prologue_forward, op_shape(storage, T, segments, shape));
  const double bytes = prologue_columns_bytes(proj_TN, shape) +
                       bytes_of({q_THK, k_THK, v_THV, g_TH, beta_TH, q_rstd_TH, k_rstd_TH, conv_CW, A_log_H,
                                 dt_bias_H, segments.positions_T});
  // Per channel 2W for the taps and 2 for SiLU, 3 more for l2norm; per gate about 8.
  const double flops =
      static_cast<double>(T) * static_cast<double>((2 * shape.conv_width + 2) * shape.channels() +
                                                   6 * shape.keys() + 8 * shape.value_heads);
  const OpScope scope(stream, Op::gdn_prologue_forward, {bytes, flops}, q_THK);
  submit(stream, [=, &stream] {
    stream.kernels().gdn_prologue_forward(stream, q_THK, k_THK, v_THV, g_TH, beta_TH, q_rstd_TH, k_rstd_TH,
                                          proj_TN, conv_CW, A_log_H, dt_bias_H, segments, shape);
  });
}

void gdn_prologue_backward(Stream& stream, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H,
                           Tensor ddt_bias_H, CTensor dq_THK, CTensor dk_THK, CTensor dv_THV, CTensor dg_TH,
                           CTensor dbeta_TH, CTensor proj_TN, CTensor conv_CW, CTensor A_log_H,
                           CTensor dt_bias_H, CTensor q_THK, CTensor k_THK, CTensor q_rstd_TH,
                           CTensor k_rstd_TH, const Segments& segments, GdnShape shape) {
  const int64_t T = proj_TN.dim(0);
  const DType storage = proj_TN.dtype, compute = compute_dtype(storage);
  const Check check{"gdn_prologue_backward"};
  check_shape(check, shape);
  check_segments(check, segments, T);
  check.input("proj_TN", proj_TN, storage, {T, shape.columns()});
  check.output("dproj_TN", dproj_TN, storage, {T, shape.columns()});
  check.input("conv_CW", conv_CW, storage, {shape.channels(), shape.conv_width});
  check.output("dconv_CW", dconv_CW, compute, {shape.channels(), shape.conv_width});
  check.input("A_log_H", A_log_H, compute, {shape.value_heads});
  check.input("dt_bias_H", dt_bias_H, compute, {shape.value_heads});
  check.output("dA_log_H", dA_log_H, compute, {shape.value_heads});
  check.output("ddt_bias_H", ddt_bias_H, compute, {shape.value_heads});
  check.input("q_THK", q_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.input("k_THK", k_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.input("dq_THK", dq_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.input("dk_THK", dk_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.input("dv_THV", dv_THV, storage, {T, shape.value_heads, shape.value_dim});
  check.input("dg_TH", dg_TH, compute, {T, shape.value_heads});
  check.input("dbeta_TH", dbeta_TH, compute, {T, shape.value_heads});
  check.input("q_rstd_TH", q_rstd_TH, compute, {T, shape.key_heads});
  check.input("k_rstd_TH", k_rstd_TH, compute, {T, shape.key_heads});
  require_scratch(stream, Op::gdn_prologue_backward, op_shape(storage, T, segments, shape));
  // Gradients of parameters are read and written.
  const double bytes = prologue_columns_bytes(proj_TN, shape) + prologue_columns_bytes(dproj_TN, shape) +
                       2 * bytes_of({dconv_CW, dA_log_H, ddt_bias_H}) +
                       bytes_of({dq_THK, dk_THK, dv_THV, dg_TH, dbeta_TH, conv_CW, A_log_H, dt_bias_H, q_THK,
                                 k_THK, q_rstd_TH, k_rstd_TH, segments.positions_T});
  // Per channel 2W each for recomputing c, for dx and for dconv, 6 for SiLU, 5 more for l2norm; per gate 14.
  const double flops =
      static_cast<double>(T) * static_cast<double>((6 * shape.conv_width + 6) * shape.channels() +
                                                   10 * shape.keys() + 14 * shape.value_heads);
  const OpScope scope(stream, Op::gdn_prologue_backward, {bytes, flops}, dproj_TN);
  submit(stream, [=, &stream] {
    stream.kernels().gdn_prologue_backward(stream, dproj_TN, dconv_CW, dA_log_H, ddt_bias_H, dq_THK, dk_THK,
                                           dv_THV, dg_TH, dbeta_TH, proj_TN, conv_CW, A_log_H, dt_bias_H,
                                           q_THK, k_THK, q_rstd_TH, k_rstd_TH, segments, shape);
  });
}

void gated_delta_forward(Stream& stream, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                         CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments& segments,
                         GdnShape shape) {
  const int64_t T = q_THK.dim(0);
  const DType storage = q_THK.dtype, compute = compute_dtype(storage);
  const Check check{"gated_delta_forward"};
  check_shape(check, shape);
  check_segments(check, segments, T);
  check.input("q_THK", q_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.input("k_THK", k_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.input("v_THV", v_THV, storage, {T, shape.value_heads, shape.value_dim});
  check.output("o_THV", o_THV, storage, v_THV.shape);
  check.input("g_TH", g_TH, compute, {T, shape.value_heads});
  check.input("beta_TH", beta_TH, compute, {T, shape.value_heads});
  if (!states_CHKV.empty()) check_states(check, states_CHKV, segments, storage, shape);
  require_scratch(stream, Op::gated_delta_forward, op_shape(storage, T, segments, shape));
  const ChunkSums chunks(segments);
  const double dk = static_cast<double>(shape.key_dim), dv = static_cast<double>(shape.value_dim);
  // Per value head and chunk of n: K S, Q S and the new state of 2 n dk dv; K K^T and Q K^T of 2 n^2 dk; A W
  // and P D of 2 n^2 dv.
  const double flops =
      static_cast<double>(shape.value_heads) * (6 * chunks.n * dk * dv + 4 * chunks.n2 * (dk + dv));
  const double bytes =
      bytes_of({o_THV, q_THK, k_THK, v_THV, g_TH, beta_TH}) + state_bytes(states_CHKV, chunks);
  const OpScope scope(stream, Op::gated_delta_forward, {bytes, flops}, v_THV);
  submit(stream, [=, &stream] {
    stream.kernels().gated_delta_forward(stream, o_THV, states_CHKV, q_THK, k_THK, v_THV, g_TH, beta_TH,
                                         segments, shape);
  });
}

void gated_delta_backward(Stream& stream, Tensor dq_THK, Tensor dk_THK, Tensor dv_THV, Tensor dg_TH,
                          Tensor dbeta_TH, CTensor do_THV, CTensor states_CHKV, CTensor q_THK, CTensor k_THK,
                          CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments& segments,
                          GdnShape shape) {
  const int64_t T = q_THK.dim(0);
  const DType storage = q_THK.dtype, compute = compute_dtype(storage);
  const Check check{"gated_delta_backward"};
  check_shape(check, shape);
  check_segments(check, segments, T);
  check.input("q_THK", q_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.input("k_THK", k_THK, storage, {T, shape.key_heads, shape.key_dim});
  check.output("dq_THK", dq_THK, storage, q_THK.shape);
  check.output("dk_THK", dk_THK, storage, q_THK.shape);
  check.input("v_THV", v_THV, storage, {T, shape.value_heads, shape.value_dim});
  check.input("do_THV", do_THV, storage, {T, shape.value_heads, shape.value_dim});
  check.output("dv_THV", dv_THV, storage, v_THV.shape);
  check.input("g_TH", g_TH, compute, {T, shape.value_heads});
  check.input("beta_TH", beta_TH, compute, {T, shape.value_heads});
  check.output("dg_TH", dg_TH, compute, {T, shape.value_heads});
  check.output("dbeta_TH", dbeta_TH, compute, {T, shape.value_heads});
  check_states(check, states_CHKV, segments, storage, shape);
  require_scratch(stream, Op::gated_delta_backward, op_shape(storage, T, segments, shape));
  const ChunkSums chunks(segments);
  const double dk = static_cast<double>(shape.key_dim), dv = static_cast<double>(shape.value_dim);
  // Per value head and chunk of n, from the stored state S and with R the gradient of the state leaving: of
  // 2 n dk dv: K S, K R, dO S^T, D R^T, dU S^T, Q^T dO, K^T dU; of 2 n^2 dk: K K^T, Q K^T, dA K, dA^T Q,
  // (M + M^T) K; of 2 n^2 dv: A W, P^T dO, A^T dD, dD W^T, dO D^T; of 2 n^3: T^T dT T^T, twice.
  const double flops = static_cast<double>(shape.value_heads) *
                       (14 * chunks.n * dk * dv + 10 * chunks.n2 * (dk + dv) + 4 * chunks.n3);
  const double bytes =
      bytes_of({dq_THK, dk_THK, dv_THV, dg_TH, dbeta_TH, do_THV, q_THK, k_THK, v_THV, g_TH, beta_TH}) +
      state_bytes(states_CHKV, chunks);
  const OpScope scope(stream, Op::gated_delta_backward, {bytes, flops}, dq_THK);
  submit(stream, [=, &stream] {
    stream.kernels().gated_delta_backward(stream, dq_THK, dk_THK, dv_THV, dg_TH, dbeta_TH, do_THV,
                                          states_CHKV, q_THK, k_THK, v_THV, g_TH, beta_TH, segments, shape);
  });
}

void gated_rmsnorm_forward(Stream& stream, Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN,
                           CTensor w_V, GdnShape shape, float eps) {
  const int64_t T = proj_TN.dim(0);
  const DType storage = proj_TN.dtype, compute = compute_dtype(storage);
  const Check check{"gated_rmsnorm_forward"};
  check_shape(check, shape);
  check.input("proj_TN", proj_TN, storage, {T, shape.columns()});
  check.input("o_THV", o_THV, storage, {T, shape.value_heads, shape.value_dim});
  check.output("y_THV", y_THV, storage, o_THV.shape);
  check.output("rstd_TH", rstd_TH, compute, {T, shape.value_heads});
  check.input("w_V", w_V, compute, {shape.value_dim});
  require_scratch(stream, Op::gated_rmsnorm_forward, {.storage = storage, .rows = T, .gdn = shape});
  // Per element 2 for the sum of squares, 2 for the scale, 3 for the gate.
  const OpScope scope(stream, Op::gated_rmsnorm_forward,
                      {bytes_of({y_THV, rstd_TH, o_THV, w_V}) + z_bytes(proj_TN, shape),
                       7 * static_cast<double>(o_THV.count())},
                      o_THV);
  submit(stream, [=, &stream] {
    stream.kernels().gated_rmsnorm_forward(stream, y_THV, rstd_TH, o_THV, proj_TN, w_V, shape, eps);
  });
}

void gated_rmsnorm_backward(Stream& stream, Tensor do_THV, Tensor dproj_TN, Tensor dw_V, CTensor dy_THV,
                            CTensor o_THV, CTensor proj_TN, CTensor w_V, CTensor rstd_TH, GdnShape shape) {
  const int64_t T = proj_TN.dim(0);
  const DType storage = proj_TN.dtype, compute = compute_dtype(storage);
  const Check check{"gated_rmsnorm_backward"};
  check_shape(check, shape);
  check.input("proj_TN", proj_TN, storage, {T, shape.columns()});
  check.output("dproj_TN", dproj_TN, storage, proj_TN.shape);
  check.input("dy_THV", dy_THV, storage, {T, shape.value_heads, shape.value_dim});
  check.input("o_THV", o_THV, storage, {T, shape.value_heads, shape.value_dim});
  check.output("do_THV", do_THV, storage, o_THV.shape);
  check.input("rstd_TH", rstd_TH, compute, {T, shape.value_heads});
  check.input("w_V", w_V, compute, {shape.value_dim});
  check.output("dw_V", dw_V, compute, {shape.value_dim});
  require_scratch(stream, Op::gated_rmsnorm_backward, {.storage = storage, .rows = T, .gdn = shape});
  // Per element: the gate and its derivative 7, dn 2, mean 2, do 3, dz 4, dw 3.
  const OpScope scope(stream, Op::gated_rmsnorm_backward,
                      {bytes_of({do_THV, dw_V, dw_V, dy_THV, o_THV, w_V, rstd_TH}) + z_bytes(proj_TN, shape) +
                           z_bytes(dproj_TN, shape),
                       21 * static_cast<double>(o_THV.count())},
                      o_THV);
  submit(stream, [=, &stream] {
    stream.kernels().gated_rmsnorm_backward(stream, do_THV, dproj_TN, dw_V, dy_THV, o_THV, proj_TN, w_V,
                                            rstd_TH, shape);
  });
}

}  // namespace deltatune::ops
