// Kernels: the whole contract between the model and the machines. One row per op; each table (cpu, cuda,
// null) fills every row, since a row left out does not compile.
//
// Conventions of every row
//   T tokens (slots of the packed row), D hidden size, N columns of a fused projection, V vocabulary.
//   Storage tensors (activations, weights) share one dtype: f32 or bf16 (f64 in gradient checks). Statistics,
//   gates, log-decays, gradients of parameters and keep_f32 parameters have compute_dtype(storage).
//   Arithmetic is in compute dtype, rounded once at each store. Sums over tokens have a fixed order.
//   Activations and their gradients are written (=). Gradients of parameters accumulate (+=).
//   An output given as an empty view is not wanted and not written.
//   Ops neither allocate nor synchronise nor read the environment; scratch comes from Stream::scratch.
// Formulas: the headers of ops/ (norms.h, attention.h, delta_net.h, ...).
#pragma once

#include <cstdint>

#include "ops/random_normal.h"
#include "ops/segments.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace deltatune {

/// A pointer to a function that cannot be null: a table without this row does not compile.
template <class>
class Fn;
template <class R, class... A>
class Fn<R(A...)> {
 public:
  constexpr Fn(R (*f)(A...)) : f_(f) {}  // NOLINT(google-explicit-constructor)
  R operator()(A... arguments) const { return f_(arguments...); }

 private:
  R (*f_)(A...);
};

/// Full attention. The fused projection proj_TN has the columns
///   [ q_0 gate_0 q_1 gate_1 ... | k_0 ... | v_0 ... ], each of head_dim: N = (2 query_heads + 2 kv_heads) d.
struct AttentionShape {
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;  ///< even, at most head_dim
  int64_t columns() const { return (2 * query_heads + 2 * kv_heads) * head_dim; }
  int64_t k_column() const { return 2 * query_heads * head_dim; }
  int64_t v_column() const { return (2 * query_heads + kv_heads) * head_dim; }
};

/// Gated DeltaNet. The fused projection proj_TN has the columns [ q | k | v | z | b | a ] of
///   Hk dk, Hk dk, Hv dv, Hv dv, Hv, Hv. q, k and v together are the Conv channels of the short convolution.
struct GdnShape {
  int64_t key_heads = 0;
  int64_t value_heads = 0;  ///< a multiple of key_heads; value head h reads key head h / ratio()
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t conv_width = 0;
  int64_t ratio() const { return value_heads / key_heads; }
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
  int64_t z_column() const { return channels(); }
  int64_t b_column() const { return channels() + values(); }
  int64_t a_column() const { return b_column() + value_heads; }
  int64_t columns() const { return a_column() + value_heads; }
};

/// Added to the sum of squares of a q or k head: a constant of the model family, not rms_norm_eps.
inline constexpr double gdn_l2norm_eps = 1e-6;

/// nt: c[M,N] = a[M,K] b[N,K]^T (forward).  nn: c[M,N] = a[M,K] b[K,N] (input gradient).
/// tn: c[M,N] = a[K,M]^T b[K,N] (weight gradient).
enum class MatmulLayout { nt, nn, tn };
struct MatmulSpec {
  MatmulLayout layout = MatmulLayout::nt;
  bool accumulate = false;  ///< c += instead of c =
};

/// Entries of the f32 [8] step scalars that live on the device, so that a captured step can be replayed.
struct StepScalar {
  static constexpr int learning_rate = 0;
  static constexpr int bias_correction1 = 1;  ///< 1 - beta1^n
  static constexpr int bias_correction2 = 2;  ///< 1 - beta2^n
  static constexpr int inverse_count = 3;     ///< 1 / supervised targets of the accumulation window
  static constexpr int gradient_scale = 4;    ///< out of grad_scale: inverse_count times the clip factor
  static constexpr int gradient_norm = 5;     ///< out of grad_scale: of the mean loss, before clipping
  static constexpr int nonfinite = 6;         ///< out of grad_scale: 1 if the norm is not finite, else 0
  static constexpr int step = 7;  ///< n, the number of this update from 1: keys stochastic rounding
  static constexpr int count = 8;
};

/// One parameter range in the optimizer; all of one length n.
struct AdamwTensors {
  Tensor param_n;     ///< storage dtype; written
  Tensor master_n;    ///< f32, read and written; empty: param_n, f32 or bf16, is its own master
  Tensor m_n;         ///< f32, bf16, or u8: codes of ops/moment_codes.h
  Tensor v_n;         ///< dtype of m_n
  CTensor grad_n;     ///< f32, of the loss sum
  Tensor m_unit_b{};  ///< f32, one for each block of 128 elements; where the moments are codes
  Tensor v_unit_b{};
  int64_t first = 0;   ///< number of element 0 in its group, on any rank: keys stochastic rounding. Codes: a
                       ///< multiple of 128
  uint32_t group = 0;  ///< number of the group
};
/// How moments and parameters that are kept in bf16 are rounded. A copy of an f32 master is always the
/// nearest; codes are always stochastic.
enum class Rounding { nearest, stochastic };
struct AdamwOptions {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0;
  Rounding rounding = Rounding::nearest;
  uint64_t seed = 0;  ///< of stochastic rounding
};

struct Kernels {
  const char* name;

  // Embedding. order_T: token positions sorted by token id (stable), for a segmented sum without atomics.
  Fn<void(Stream&, Tensor y_TD, CTensor tokens_T, CTensor weight_VD)> embedding_forward;
  Fn<void(Stream&, Tensor dweight_VD, CTensor dy_TD, CTensor tokens_T, CTensor order_T)> embedding_backward;
  // The same for R rows and a stretch of the table, from element `first` on. ids_R2T: tokens and order of
  // each.
  Fn<void(Stream&, Tensor y_RTD, CTensor ids_R2T, CTensor part_N, int64_t first)> embedding_part_forward;
  Fn<void(Stream&, Tensor dpart_N, CTensor dy_RTD, CTensor ids_R2T, int64_t first)> embedding_part_backward;

  // y = x rstd (1 + w), rstd = (mean x^2 + eps)^-1/2.
  Fn<void(Stream&, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor w_D, float eps)> rmsnorm_forward;
  Fn<void(Stream&, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor w_D, CTensor rstd_T)>
      rmsnorm_backward;
  // sum = x + delta (rounded to storage), y = rmsnorm(sum).  Backward: dx = dsum + rmsnorm_backward(dy), the
  // gradient of x and of delta alike.
  Fn<void(Stream&, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor delta_TD, CTensor w_D,
          float eps)>
      add_rmsnorm_forward;
  Fn<void(Stream&, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD, CTensor sum_TD, CTensor w_D,
          CTensor rstd_T)>
      add_rmsnorm_backward;

  // c may be f32 where a and b are bf16 (weight gradients).
  Fn<void(Stream&, Tensor c, CTensor a, CTensor b, MatmulSpec)> matmul;

  // Per head: q = rope(rmsnorm(q) (1 + q_norm)), k likewise; v and gate stay in proj. inv_freq: f32
  // [rotary/2].
  Fn<void(Stream&, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG, CTensor proj_TN,
          CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T, CTensor inv_freq, AttentionShape,
          float eps)>
      qk_norm_rope_forward;
  // Writes the q and k columns of dproj.
  Fn<void(Stream&, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K, CTensor dq_THK, CTensor dk_TGK,
          CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor q_rstd_TH, CTensor k_rstd_TG,
          CTensor positions_T, CTensor inv_freq, AttentionShape)>
      qk_norm_rope_backward;
  // Causal inside each document, scale = head_dim^-1/2; v from proj. lse_HT: log-sum-exp of the scaled
  // scores.
  Fn<void(Stream&, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK, CTensor proj_TN,
          const Segments&, AttentionShape)>
      attention_forward;
  // Writes the v columns of dproj.
  Fn<void(Stream&, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK, CTensor o_THK,
          CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT, const Segments&, AttentionShape)>
      attention_backward;
  // y = o sigmoid(gate), gate from proj. Backward writes the gate columns of dproj.
  Fn<void(Stream&, Tensor y_THK, CTensor o_THK, CTensor proj_TN, AttentionShape)> sigmoid_gate_forward;
  Fn<void(Stream&, Tensor do_THK, Tensor dproj_TN, CTensor dy_THK, CTensor o_THK, CTensor proj_TN,
          AttentionShape)>
      sigmoid_gate_backward;

  // Short convolution + SiLU over q, k, v; q and k l2-normalised per head (q not yet scaled); beta =
  // sigmoid(b); g = -exp(A_log) softplus(a + dt_bias). Taps before the document start are 0. rstd = (sum x^2
  // + 1e-6)^-1/2.
  Fn<void(Stream&, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH, Tensor beta_TH, Tensor q_rstd_TH,
          Tensor k_rstd_TH, CTensor proj_TN, CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H,
          const Segments&, GdnShape)>
      gdn_prologue_forward;
  // Writes the q, k, v, b and a columns of dproj. q, k: the normalised outputs of forward.
  Fn<void(Stream&, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H, Tensor ddt_bias_H, CTensor dq_THK,
          CTensor dk_THK, CTensor dv_THV, CTensor dg_TH, CTensor dbeta_TH, CTensor proj_TN, CTensor conv_CW,
          CTensor A_log_H, CTensor dt_bias_H, CTensor q_THK, CTensor k_THK, CTensor q_rstd_TH,
          CTensor k_rstd_TH, const Segments&, GdnShape)>
      gdn_prologue_backward;
  // Per value head, S = 0 at each document start: S = e^g S; d = beta (v - S^T k); S += k d^T; o = dk^-1/2
  // S^T q. states_CHKV: S entering each chunk, in storage dtype, what backward starts from.
  Fn<void(Stream&, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK, CTensor v_THV,
          CTensor g_TH, CTensor beta_TH, const Segments&, GdnShape)>
      gated_delta_forward;
  // dq and dk are summed over the value heads of a key head.
  Fn<void(Stream&, Tensor dq_THK, Tensor dk_THK, Tensor dv_THV, Tensor dg_TH, Tensor dbeta_TH, CTensor do_THV,
          CTensor states_CHKV, CTensor q_THK, CTensor k_THK, CTensor v_THV, CTensor g_TH, CTensor beta_TH,
          const Segments&, GdnShape)>
      gated_delta_backward;
  // Per value head: y = o rstd w silu(z), z from proj; w centred at 1. Backward writes the z columns of
  // dproj.
  Fn<void(Stream&, Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN, CTensor w_V, GdnShape,
          float eps)>
      gated_rmsnorm_forward;
  Fn<void(Stream&, Tensor do_THV, Tensor dproj_TN, Tensor dw_V, CTensor dy_THV, CTensor o_THV,
          CTensor proj_TN, CTensor w_V, CTensor rstd_TH, GdnShape)>
      gated_rmsnorm_backward;

  // y = silu(gate) up; gate_up_T2F = [gate | up]. dgate_up may be gate_up's own memory.
  Fn<void(Stream&, Tensor y_TF, CTensor gate_up_T2F)> swiglu_forward;
  Fn<void(Stream&, Tensor dgate_up_T2F, CTensor dy_TF, CTensor gate_up_T2F)> swiglu_backward;

  // y[n] = x[rows[n]].  Backward (scatter): dx = 0, then dx[rows[n]] = dy[n]; rows are distinct.
  Fn<void(Stream&, Tensor y_ND, CTensor x_TD, CTensor rows_N)> gather_rows;
  Fn<void(Stream&, Tensor dx_TD, CTensor dy_ND, CTensor rows_N)> scatter_rows;
  // loss_sum[0] (f64) += sum of -log softmax(logits)[target]; dlogits = softmax - onehot. dlogits may be
  // logits' own memory; empty: evaluation.
  Fn<void(Stream&, Tensor loss_sum_1, Tensor dlogits_NV, CTensor logits_NV, CTensor targets_N)> cross_entropy;

  // sum[0] (f64) += sum of x^2.
  Fn<void(Stream&, Tensor sum_1, CTensor x_n)> sum_squares;
  // From sum_1 (of the gradients of the loss sum) and inverse_count: norm, nonfinite, and gradient_scale =
  // inverse_count min(1, max_norm / (norm + 1e-6)) (max_norm <= 0: no clipping).
  Fn<void(Stream&, Tensor scalars_8, CTensor sum_1, float max_norm)> grad_scale;
  // Decoupled AdamW with g = grad gradient_scale; does nothing at all where nonfinite is set.
  Fn<void(Stream&, AdamwTensors, CTensor scalars_8, AdamwOptions)> adamw;

  Fn<void(Stream&, Tensor y, double value)> fill;  // any dtype
  // y[i] = deviation N[first + i] of a stream of normal values, a pure function of its place.
  Fn<void(Stream&, Tensor y, double deviation, NormalStream)> fill_normal;
  Fn<void(Stream&, Tensor y, CTensor x)> cast;  // copy, converting between floating dtypes
  Fn<void(Stream&, Tensor y, CTensor x)> add;   // y += x
};

/// The specification: plain loops and OpenBLAS, in src/cpu.
const Kernels& cpu_kernels();
/// Does nothing: the table of `plan`.
const Kernels& null_kernels();

}  // namespace deltatune
