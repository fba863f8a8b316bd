// Checks and costs of qk_norm_rope, attention and sigmoid_gate.
#include "ops/attention.h"

#include "ops/checks.h"
#include "ops/kernel_list.h"
#include "ops/op.h"

namespace deltatune::ops {
namespace {

/// Shape and dtype of everything around one fused projection.
struct Layout {
  const Check& check;
  const AttentionShape& shape;
  int64_t tokens;
  DType storage;
  DType compute;

  Layout(const Check& op_check, const CTensor& proj_TN, const AttentionShape& attention_shape)
      : check(op_check), shape(attention_shape) {
    check.that(shape.kv_heads > 0 && shape.query_heads % shape.kv_heads == 0 && shape.head_dim > 0, "shape",
               "query heads a multiple of kv heads");
    check.that(shape.rotary_dim >= 0 && shape.rotary_dim % 2 == 0 && shape.rotary_dim <= shape.head_dim,
               "shape", "an even rotary_dim, at most head_dim");
    check.storage("proj_TN", proj_TN);
    check.rank("proj_TN", proj_TN, 2);
    tokens = proj_TN.dim(0);
    storage = proj_TN.dtype;
    compute = compute_dtype(storage);
    check.input("proj_TN", proj_TN, storage, {tokens, shape.columns()});
  }

  Shape q_shape() const { return {tokens, shape.query_heads, shape.head_dim}; }
  Shape k_shape() const { return {tokens, shape.kv_heads, shape.head_dim}; }
  void query(const char* argument, const CTensor& x) const { check.input(argument, x, storage, q_shape()); }
  void key(const char* argument, const CTensor& x) const { check.input(argument, x, storage, k_shape()); }
  void gradient(const CTensor& dproj_TN) const {
    check.input("dproj_TN", dproj_TN, storage, {tokens, shape.columns()});
  }
  void rope(const CTensor& q_norm_K, const CTensor& k_norm_K, const CTensor& positions_T,
            const CTensor& inv_freq) const {
    check.input("q_norm_K", q_norm_K, storage, {shape.head_dim});
    check.input("k_norm_K", k_norm_K, storage, {shape.head_dim});
    check.input("positions_T", positions_T, DType::i32, {tokens});
    check.input("inv_freq", inv_freq, DType::f32, {shape.rotary_dim / 2});
  }
  void documents(const Segments& segments) const {
    const auto& starts = segments.host_cu_seqlens;
    check.that(starts.size() >= 2 && starts.front() == 0 && starts.back() == tokens, "segments",
               "documents that cover the row");
    for (size_t i = 0; i + 1 < starts.size(); ++i)
      check.that(starts[i] <= starts[i + 1], "segments", "starts in rising order");
  }

  /// Bytes of the given number of columns of proj.
  double columns(int64_t count) const {
    return static_cast<double>(tokens * count) * static_cast<double>(size_of(storage));
  }
  int64_t qk_columns() const { return (shape.query_heads + shape.kv_heads) * shape.head_dim; }
  int64_t v_columns() const { return shape.kv_heads * shape.head_dim; }
  OpShape op_shape() const { return {.storage = storage, .rows = tokens, .attention = shape}; }
  OpShape op_shape(const Segments& segments) const {
    return {.storage = storage,
            .rows = tokens,
            .max_documents = segments.max_documents(),
            .max_chunks = segments.chunks.dim(0),
            .attention = shape};
  }
};

/// 4 K sum of n (n + 1) / 2 over documents and query heads: two products of the visible pairs.
double forward_flops(const Segments& segments, const AttentionShape& shape) {
  double pairs = 0;
  for (size_t i = 0; i + 1 < segments.host_cu_seqlens.size(); ++i) {
    const double n = segments.host_cu_seqlens[i + 1] - segments.host_cu_seqlens[i];
    pairs += n * (n + 1) / 2;
  }
  return 4 * static_cast<double>(shape.head_dim * shape.query_heads) * pairs;
}

}  // namespace

void qk_norm_rope_forward(Stream& stream, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG,
                          CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T,
                          CTensor inv_freq, AttentionShape shape, float eps) {
  const Check check{"qk_norm_rope_forward"};
  const Layout layout(check, proj_TN, shape);
  layout.query("q_THK", q_THK);
  layout.key("k_TGK", k_TGK);
  check.output("q_rstd_TH", q_rstd_TH, layout.compute, {layout.tokens, shape.query_heads});
  check.output("k_rstd_TG", k_rstd_TG, layout.compute, {layout.tokens, shape.kv_heads});
  layout.rope(q_norm_K, k_norm_K, positions_T, inv_freq);
  require_scratch(stream, Op::qk_norm_rope_forward, layout.op_shape());
  const double heads = bytes_of({q_THK, k_TGK});
  const OpScope scope(stream, Op::qk_norm_rope_forward,
                      {.bytes = 2 * heads + bytes_of({q_rstd_TH, k_rstd_TG, q_norm_K, k_norm_K, positions_T}),
                       .flops = 6 * static_cast<double>(q_THK.count() + k_TGK.count())},
                      q_THK);
  submit(stream, [=, &stream] {
    stream.kernels().qk_norm_rope_forward(stream, q_THK, k_TGK, q_rstd_TH, k_rstd_TG, proj_TN, q_norm_K,
                                          k_norm_K, positions_T, inv_freq, shape, eps);
  });
}

void qk_norm_rope_backward(Stream& stream, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K,
                           CTensor dq_THK, CTensor dk_TGK, CTensor proj_TN, CTensor q_norm_K,
                           CTensor k_norm_K, CTensor q_rstd_TH, CTensor k_rstd_TG, CTensor positions_T,
                           CTensor inv_freq, AttentionShape shape) {
  const Check check{"qk_norm_rope_backward"};
  const Layout layout(check, proj_TN, shape);
  if (!dproj_TN.empty()) layout.gradient(dproj_TN);
  check.output("dq_norm_K", dq_norm_K, layout.compute, {shape.head_dim});
  check.output("dk_norm_K", dk_norm_K, layout.compute, {shape.head_dim});
  layout.query("dq_THK", dq_THK);
  layout.key("dk_TGK", dk_TGK);
  layout.rope(q_norm_K, k_norm_K, positions_T, inv_freq);
  check.input("q_rstd_TH", q_rstd_TH, layout.compute, {layout.tokens, shape.query_heads});
  check.input("k_rstd_TG", k_rstd_TG, layout.compute, {layout.tokens, shape.kv_heads});
  require_scratch(stream, Op::qk_norm_rope_backward, layout.op_shape());
  const OpScope scope(
      stream, Op::qk_norm_rope_backward,
      {.bytes = 3 * layout.columns(layout.qk_columns()) +
                bytes_of({dq_norm_K, dk_norm_K, q_norm_K, k_norm_K, q_rstd_TH, k_rstd_TG, positions_T}),
       .flops = 12 * static_cast<double>(dq_THK.count() + dk_TGK.count())},
      dproj_TN);
  submit(stream, [=, &stream] {
    stream.kernels().qk_norm_rope_backward(stream, dproj_TN, dq_norm_K, dk_norm_K, dq_THK, dk_TGK, proj_TN,
                                           q_norm_K, k_norm_K, q_rstd_TH, k_rstd_TG, positions_T, inv_freq,
                                           shape);
  });
}

void attention_forward(Stream& stream, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                       CTensor proj_TN, const Segments& segments, AttentionShape shape) {
  const Check check{"attention_forward"};
  const Layout layout(check, proj_TN, shape);
  layout.query("o_THK", o_THK);
  check.output("lse_HT", lse_HT, layout.compute, {shape.query_heads, layout.tokens});
  layout.query("q_THK", q_THK);
  layout.key("k_TGK", k_TGK);
  layout.documents(segments);
  require_scratch(stream, Op::attention_forward, layout.op_shape(segments));
  const OpScope scope(stream, Op::attention_forward,
                      {.bytes = bytes_of({o_THK, lse_HT, q_THK, k_TGK}) + layout.columns(layout.v_columns()),
                       .flops = forward_flops(segments, shape)},
                      o_THK);
  submit(stream, [=, &stream] {
    stream.kernels().attention_forward(stream, o_THK, lse_HT, q_THK, k_TGK, proj_TN, segments, shape);
  });
}

void attention_backward(Stream& stream, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK,
                        CTensor o_THK, CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT,
                        const Segments& segments, AttentionShape shape) {
  const Check check{"attention_backward"};
  const Layout layout(check, proj_TN, shape);
  layout.query("dq_THK", dq_THK);
  layout.key("dk_TGK", dk_TGK);
  layout.gradient(dproj_TN);
  layout.query("do_THK", do_THK);
  layout.query("o_THK", o_THK);
  layout.query("q_THK", q_THK);
  layout.key("k_TGK", k_TGK);
  check.input("lse_HT", lse_HT, layout.compute, {shape.query_heads, layout.tokens});
  layout.documents(segments);
  require_scratch(stream, Op::attention_backward, layout.op_shape(segments));
  const OpScope scope(stream, Op::attention_backward,
                      {.bytes = bytes_of({dq_THK, dk_TGK, do_THK, o_THK, q_THK, k_TGK, lse_HT}) +
                                2 * layout.columns(layout.v_columns()),
                       .flops = 2.5 * forward_flops(segments, shape)},
                      dq_THK);
  submit(stream, [=, &stream] {
    stream.kernels().attention_backward(stream, dq_THK, dk_TGK, dproj_TN, do_THK, o_THK, q_THK, k_TGK,
                                        proj_TN, lse_HT, segments, shape);
  });
}

void sigmoid_gate_forward(Stream& stream, Tensor y_THK, CTensor o_THK, CTensor proj_TN,
                          AttentionShape shape) {
  const Check check{"sigmoid_gate_forward"};
  const Layout layout(check, proj_TN, shape);
  layout.query("y_THK", y_THK);
  layout.query("o_THK", o_THK);
  require_scratch(stream, Op::sigmoid_gate_forward, layout.op_shape());
  const OpScope scope(
      stream, Op::sigmoid_gate_forward,
      {.bytes = 3 * static_cast<double>(o_THK.bytes()), .flops = 4 * static_cast<double>(o_THK.count())},
      o_THK);
  submit(stream,
         [=, &stream] { stream.kernels().sigmoid_gate_forward(stream, y_THK, o_THK, proj_TN, shape); });
}

void sigmoid_gate_backward(Stream& stream, Tensor do_THK, Tensor dproj_TN, CTensor dy_THK, CTensor o_THK,
                           CTensor proj_TN, AttentionShape shape) {
  const Check check{"sigmoid_gate_backward"};
  const Layout layout(check, proj_TN, shape);
  layout.query("do_THK", do_THK);
  layout.gradient(dproj_TN);
  layout.query("dy_THK", dy_THK);
  layout.query("o_THK", o_THK);
  require_scratch(stream, Op::sigmoid_gate_backward, layout.op_shape());
  const OpScope scope(
      stream, Op::sigmoid_gate_backward,
      {.bytes = 5 * static_cast<double>(o_THK.bytes()), .flops = 8 * static_cast<double>(o_THK.count())},
      o_THK);
  submit(stream, [=, &stream] {
    stream.kernels().sigmoid_gate_backward(stream, do_THK, dproj_TN, dy_THK, o_THK, proj_TN, shape);
  });
}

}  // namespace deltatune::ops
