// qk_norm_rope, attention and sigmoid_gate: naive double formulas, gradients, document boundaries.
#include "ops/attention.h"

#include "ops/gradcheck.h"
#include "ops/parity.h"

namespace deltatune {
namespace {

using parity::Array;
using parity::Row;

constexpr float eps = 1e-6f;

/// Real head sizes once, small odd ones otherwise.
const AttentionShape small{4, 2, 6, 4};
const AttentionShape odd{3, 1, 17, 8};
const AttentionShape real{2, 1, 256, 64};

Array inverse_frequencies(const AttentionShape& shape) {
  std::vector<double> values;
  for (int64_t j = 0; j < shape.rotary_dim / 2; ++j)
    values.push_back(std::pow(1e4, -2.0 * static_cast<double>(j) / static_cast<double>(shape.rotary_dim)));
  return {DType::f32, {shape.rotary_dim / 2}, values};
}

size_t at(int64_t index) {
  return static_cast<size_t>(index);
}

/// Positions of the head columns in proj.
int64_t q_column(const AttentionShape& shape, int64_t head) {
  return 2 * head * shape.head_dim;
}
int64_t k_column(const AttentionShape& shape, int64_t head) {
  return (2 * shape.query_heads + head) * shape.head_dim;
}
int64_t v_column(const AttentionShape& shape, int64_t head) {
  return (2 * shape.query_heads + shape.kv_heads + head) * shape.head_dim;
}

double rounded(DType dtype, double value) {
  return Array(dtype, {1}, {value}).values()[0];
}

/// rope(norm(x)) of all heads of one kind; cos and sin rounded to dtype.
std::vector<double> rope_reference(DType dtype, const AttentionShape& shape, int64_t heads,
                                   int64_t (*column)(const AttentionShape&, int64_t), const Array& proj,
                                   const Array& w, const Array& positions) {
  const auto x = proj.values();
  const auto gain = w.values();
  const auto frequency = inverse_frequencies(shape).values();
  const int64_t half = shape.rotary_dim / 2;
  std::vector<double> out;
  for (int64_t t = 0; t < proj.shape()[0]; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const double* head = x.data() + t * shape.columns() + column(shape, h);
      double squares = 0;
      for (int64_t j = 0; j < shape.head_dim; ++j) squares += head[j] * head[j];
      const double rstd =
          1 / std::sqrt(squares / static_cast<double>(shape.head_dim) + static_cast<double>(eps));
      std::vector<double> n;
      for (int64_t j = 0; j < shape.head_dim; ++j) n.push_back(head[j] * rstd * (1 + gain[at(j)]));
      for (int64_t j = 0; j < shape.head_dim; ++j) {
        if (j >= shape.rotary_dim) {
          out.push_back(n[at(j)]);
          continue;
        }
        double angle = positions.values()[at(t)] * frequency[at(j % half)];
        if (dtype != DType::f64) angle = static_cast<double>(static_cast<float>(angle));  // angles are fp32
        const double c = rounded(dtype, std::cos(angle));
        const double s = rounded(dtype, std::sin(angle));
        out.push_back(j < half ? n[at(j)] * c - n[at(j + half)] * s : n[at(j)] * c + n[at(j - half)] * s);
      }
    }
  }
  return out;
}

class Attention : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Storage, Attention, testing::ValuesIn(parity::storage_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Attention, NormAndRopeEqualFormula) {
  const DType dtype = GetParam();
  for (const AttentionShape& shape : {small, odd, real}) {
    const Row row({3, 1, 130, 64});
    const Array proj = parity::random(dtype, {row.tokens, shape.columns()}, 1);
    const Array q_norm = parity::random(dtype, {shape.head_dim}, 2, 0.3);
    const Array k_norm = parity::random(dtype, {shape.head_dim}, 3, 0.3);
    const Array frequency = inverse_frequencies(shape);
    Array q(dtype, {row.tokens, shape.query_heads, shape.head_dim});
    Array k(dtype, {row.tokens, shape.kv_heads, shape.head_dim});
    Array q_rstd(compute_dtype(dtype), {row.tokens, shape.query_heads});
    Array k_rstd(compute_dtype(dtype), {row.tokens, shape.kv_heads});
    parity::run_twice({&q, &k, &q_rstd, &k_rstd}, [&](Stream& s) {
      ops::qk_norm_rope_forward(s, q.view(), k.view(), q_rstd.view(), k_rstd.view(), proj.view(),
                                q_norm.view(), k_norm.view(), row.positions.view(), frequency.view(), shape,
                                eps);
    });
    parity::expect_close(
        q, rope_reference(dtype, shape, shape.query_heads, q_column, proj, q_norm, row.positions), "q");
    parity::expect_close(
        k, rope_reference(dtype, shape, shape.kv_heads, k_column, proj, k_norm, row.positions), "k");
  }
}

struct AttentionReference {
  std::vector<double> o, lse, dq, dk, dv;
};

/// Softmax attention of every document and head, and its gradient, from the definition.
AttentionReference attend(const AttentionShape& shape, const Row& row, const std::vector<double>& q,
                          const std::vector<double>& k, const std::vector<double>& proj,
                          const std::vector<double>& d_o) {
  const int64_t dim = shape.head_dim;
  AttentionReference out;
  out.o.resize(q.size());
  out.dq.resize(q.size());
  out.dk.resize(k.size());
  out.dv.resize(k.size());
  out.lse.resize(at(shape.query_heads * row.tokens));
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  for (size_t d = 0; d + 1 < row.starts.size(); ++d) {
    for (int64_t h = 0; h < shape.query_heads; ++h) {
      const int64_t g = h / (shape.query_heads / shape.kv_heads);
      for (int64_t i = row.starts[d]; i < row.starts[d + 1]; ++i) {
        const auto q_at = [&](int64_t c) { return at((i * shape.query_heads + h) * dim + c); };
        const auto k_at = [&](int64_t t, int64_t c) { return at((t * shape.kv_heads + g) * dim + c); };
        const auto v_at = [&](int64_t t, int64_t c) {
          return at(t * shape.columns() + v_column(shape, g) + c);
        };
        std::vector<double> p;
        double sum = 0;
        for (int64_t t = row.starts[d]; t <= i; ++t) {
          double score = 0;
          for (int64_t c = 0; c < dim; ++c) score += q[q_at(c)] * k[k_at(t, c)];
          p.push_back(std::exp(score * scale));
          sum += p.back();
        }
        out.lse[at(h * row.tokens + i)] = std::log(sum);
        double dots = 0;
        for (int64_t t = row.starts[d]; t <= i; ++t) {
          p[at(t - row.starts[d])] /= sum;
          for (int64_t c = 0; c < dim; ++c) out.o[q_at(c)] += p[at(t - row.starts[d])] * proj[v_at(t, c)];
        }
        for (int64_t c = 0; c < dim; ++c) dots += d_o[q_at(c)] * out.o[q_at(c)];
        for (int64_t t = row.starts[d]; t <= i; ++t) {
          const double weight = p[at(t - row.starts[d])];
          double dp = 0;
          for (int64_t c = 0; c < dim; ++c) dp += d_o[q_at(c)] * proj[v_at(t, c)];
          const double ds = weight * (dp - dots) * scale;
          for (int64_t c = 0; c < dim; ++c) {
            out.dq[q_at(c)] += ds * k[k_at(t, c)];
            out.dk[k_at(t, c)] += ds * q[q_at(c)];
            out.dv[k_at(t, c)] += weight * d_o[q_at(c)];
          }
        }
      }
    }
  }
  return out;
}

/// Inputs and outputs of one attention call.
struct Call {
  AttentionShape shape;
  Row row;
  Array q, k, proj, d_o, o, lse, dq, dk, dproj;

  Call(DType dtype, const AttentionShape& attention_shape, const std::vector<int32_t>& lengths)
      : shape(attention_shape), row(lengths) {
    const Shape q_shape{row.tokens, shape.query_heads, shape.head_dim};
    const Shape k_shape{row.tokens, shape.kv_heads, shape.head_dim};
    q = parity::random(dtype, q_shape, 1);
    k = parity::random(dtype, k_shape, 2);
    proj = parity::random(dtype, {row.tokens, shape.columns()}, 3);
    d_o = parity::random(dtype, q_shape, 4);
    o = dq = Array(dtype, q_shape);
    dk = Array(dtype, k_shape);
    lse = Array(compute_dtype(dtype), {shape.query_heads, row.tokens});
    dproj = Array(dtype, proj.shape(), std::vector<double>(static_cast<size_t>(proj.count()), 7.0));
  }
  void forward(Stream& s) {
    ops::attention_forward(s, o.view(), lse.view(), q.view(), k.view(), proj.view(), row.segments(), shape);
  }
  void backward(Stream& s) {
    ops::attention_backward(s, dq.view(), dk.view(), dproj.view(), d_o.view(), o.view(), q.view(), k.view(),
                            proj.view(), lse.view(), row.segments(), shape);
  }
};

/// The v columns of dproj as [T,G,K]; expects 7 in all others.
std::vector<double> v_part(const Call& call) {
  const auto values = call.dproj.values();
  std::vector<double> out;
  for (int64_t t = 0; t < call.row.tokens; ++t) {
    for (int64_t c = 0; c < call.shape.columns(); ++c) {
      const double value = values[at(t * call.shape.columns() + c)];
      if (c >= call.shape.v_column()) {
        out.push_back(value);
      } else {
        EXPECT_EQ(value, 7.0) << "attention_backward wrote outside the v columns";
      }
    }
  }
  return out;
}

TEST_P(Attention, EqualsDefinition) {
  const DType dtype = GetParam();
  for (const AttentionShape& shape : {small, odd, real}) {
    for (const auto& lengths : parity::document_lists()) {
      if (shape.head_dim > 100 && lengths.size() < 3) continue;
      Call call(dtype, shape, lengths);
      parity::run_twice({&call.o, &call.lse}, [&](Stream& s) { call.forward(s); });
      parity::run_twice({&call.dq, &call.dk, &call.dproj}, [&](Stream& s) { call.backward(s); });
      const AttentionReference expected =
          attend(shape, call.row, call.q.values(), call.k.values(), call.proj.values(), call.d_o.values());
      SCOPED_TRACE(testing::Message() << "head_dim " << shape.head_dim << ", tokens " << call.row.tokens);
      parity::expect_close(call.o, expected.o, "o");
      // A document of one token has lse = its score, which may be near 0: compare with order 1.
      EXPECT_LE(parity::nmse(call.lse.values(), expected.lse), 1e-9) << "lse";
      if (call.row.tokens == static_cast<int64_t>(lengths.size())) {
        // One-token documents: dS = dP - D is 0 up to the rounding of o.
        for (const double value : call.dq.values()) EXPECT_NEAR(value, 0, dtype == DType::bf16 ? 0.3 : 1e-4);
      } else {
        parity::expect_close(call.dq, expected.dq, "dq");
        parity::expect_close(call.dk, expected.dk, "dk");
      }
      EXPECT_LE(parity::nmse(v_part(call), expected.dv), parity::bound(dtype)) << "dv";
    }
  }
}

TEST(AttentionOp, LargeScoresDoNotOverflow) {
  Call call(DType::f32, small, {70});
  std::vector<double> large = call.q.values();
  for (double& value : large) value *= 300;
  call.q.set(large);
  parity::run_twice({&call.o, &call.lse}, [&](Stream& s) { call.forward(s); });
  parity::run_twice({&call.dq, &call.dk, &call.dproj}, [&](Stream& s) { call.backward(s); });
}

TEST_P(Attention, OtherDocumentsKeepTheirBits) {
  const DType dtype = GetParam();
  const std::vector<int32_t> lengths = {65, 1, 130, 3, 70};
  Call before(dtype, small, lengths);
  Call after(dtype, small, lengths);
  // Every token of document 2 changes.
  const int64_t begin = after.row.starts[2];
  const int64_t end = after.row.starts[3];
  for (Array* x : {&after.q, &after.k, &after.proj, &after.d_o}) {
    auto values = x->values();
    const int64_t width = x->count() / after.row.tokens;
    for (int64_t i = begin * width; i < end * width; ++i) values[at(i)] = 50 - 3 * values[at(i)];
    x->set(values);
  }
  parity::Runner run;
  for (Call* call : {&before, &after}) {
    run([&](Stream& s) { call->forward(s); });
    run([&](Stream& s) { call->backward(s); });
  }
  const auto same_outside = [&](const Array& x, const Array& y, const char* name) {
    const int64_t width = x.count() / before.row.tokens;
    const auto a = x.values();
    const auto b = y.values();
    int64_t changed = 0;
    for (int64_t t = 0; t < before.row.tokens; ++t) {
      for (int64_t j = 0; j < width; ++j) {
        const bool inside = t >= begin && t < end;
        if (inside) {
          changed += a[at(t * width + j)] != b[at(t * width + j)];
        } else {
          ASSERT_EQ(a[at(t * width + j)], b[at(t * width + j)]) << name << " leaked to token " << t;
        }
      }
    }
    EXPECT_GT(changed, 0) << name;
  };
  same_outside(before.o, after.o, "o");
  same_outside(before.dq, after.dq, "dq");
  same_outside(before.dk, after.dk, "dk");
  same_outside(before.dproj, after.dproj, "dv");
}

TEST(AttentionOp, ADocumentIsTheSameAloneAndPacked) {
  Call alone(DType::f32, odd, {130});
  Call packed(DType::f32, odd, {65, 130, 1});
  for (const auto& [from, to] : {std::pair{&alone.q, &packed.q}, std::pair{&alone.k, &packed.k},
                                 std::pair{&alone.proj, &packed.proj}}) {
    auto values = to->values();
    const auto source = from->values();
    std::copy(source.begin(), source.end(), values.begin() + 65 * (to->count() / 196));
    to->set(values);
  }
  parity::Runner run;
  run([&](Stream& s) { alone.forward(s); });
  run([&](Stream& s) { packed.forward(s); });
  const int64_t width = alone.o.count() / 130;
  const auto x = alone.o.values();
  const auto y = packed.o.values();
  for (int64_t i = 0; i < alone.o.count(); ++i) ASSERT_EQ(x[at(i)], y[at(i + 65 * width)]);
}

TEST_P(Attention, GateEqualsFormula) {
  const DType dtype = GetParam();
  for (const AttentionShape& shape : {small, odd, real}) {
    Call call(dtype, shape, {65});
    Array y(dtype, call.o.shape());
    const Array o = parity::random(dtype, y.shape(), 5);
    parity::run_twice(
        {&y}, [&](Stream& s) { ops::sigmoid_gate_forward(s, y.view(), o.view(), call.proj.view(), shape); });
    Array d_o(dtype, o.shape());
    parity::run_twice({&d_o, &call.dproj}, [&](Stream& s) {
      ops::sigmoid_gate_backward(s, d_o.view(), call.dproj.view(), call.d_o.view(), o.view(),
                                 call.proj.view(), shape);
    });
    const auto x = o.values();
    const auto proj = call.proj.values();
    const auto dy = call.d_o.values();
    auto dproj = std::vector<double>(proj.size(), 7.0);
    std::vector<double> y_expected, do_expected;
    for (int64_t t = 0; t < 65; ++t) {
      for (int64_t h = 0; h < shape.query_heads; ++h) {
        for (int64_t j = 0; j < shape.head_dim; ++j) {
          const size_t i = at((t * shape.query_heads + h) * shape.head_dim + j);
          const size_t gate = at(t * shape.columns() + q_column(shape, h) + shape.head_dim + j);
          const double s = 1 / (1 + std::exp(-proj[gate]));
          y_expected.push_back(x[i] * s);
          do_expected.push_back(dy[i] * s);
          dproj[gate] = dy[i] * x[i] * s * (1 - s);
        }
      }
    }
    parity::expect_close(y, y_expected, "y");
    parity::expect_close(d_o, do_expected, "do");
    parity::expect_close(call.dproj, dproj, "dproj");
  }
}

Array f64(Shape shape) {
  return Array(DType::f64, shape);
}

/// Sets columns of dproj that the op does not write to 0, so that they are not NaN.
void clear(Stream& s, Array& dproj) {
  ops::fill(s, dproj.view(), 0.0);
}

TEST(AttentionGradient, QkNormRope) {
  for (const AttentionShape& shape : {small, odd}) {
    for (const auto& lengths : std::vector<std::vector<int32_t>>{{1}, {2, 1}, {63, 1, 2}, {64}, {3, 1, 65}}) {
      const Row row(lengths);
      SCOPED_TRACE(row.tokens);
      const Array frequency = inverse_frequencies(shape);
      Array q_rstd = f64({row.tokens, shape.query_heads});
      Array k_rstd = f64({row.tokens, shape.kv_heads});
      gradcheck::Case c;
      c.inputs = {{"proj", parity::random(DType::f64, {row.tokens, shape.columns()}, 1), false},
                  {"q_norm", parity::random(DType::f64, {shape.head_dim}, 2, 0.3), true},
                  {"k_norm", parity::random(DType::f64, {shape.head_dim}, 3, 0.3), true}};
      c.outputs = {f64({row.tokens, shape.query_heads, shape.head_dim}),
                   f64({row.tokens, shape.kv_heads, shape.head_dim})};
      c.forward = [&](Stream& s, const auto& in, auto& out) {
        ops::qk_norm_rope_forward(s, out[0].view(), out[1].view(), q_rstd.view(), k_rstd.view(),
                                  in[0].value.view(), in[1].value.view(), in[2].value.view(),
                                  row.positions.view(), frequency.view(), shape, eps);
      };
      c.backward = [&](Stream& s, const auto& in, const auto&, const auto& dout, auto& din) {
        clear(s, din[0]);
        ops::qk_norm_rope_backward(s, din[0].view(), din[1].view(), din[2].view(), dout[0].view(),
                                   dout[1].view(), in[0].value.view(), in[1].value.view(), in[2].value.view(),
                                   q_rstd.view(), k_rstd.view(), row.positions.view(), frequency.view(),
                                   shape);
      };
      c.probes = 80;
      c.relative = 1e-8;  // heads of six elements
      gradcheck::check(c);
    }
  }
}

TEST(AttentionGradient, Attention) {
  for (const AttentionShape& shape : {small, odd}) {
    for (const auto& lengths : std::vector<std::vector<int32_t>>{{1}, {2, 1}, {63, 1, 2}, {65}, {130, 3}}) {
      const Row row(lengths);
      SCOPED_TRACE(testing::Message() << "head_dim " << shape.head_dim << ", tokens " << row.tokens);
      Array lse = f64({shape.query_heads, row.tokens});
      gradcheck::Case c;
      c.inputs = {
          {"q", parity::random(DType::f64, {row.tokens, shape.query_heads, shape.head_dim}, 1), false},
          {"k", parity::random(DType::f64, {row.tokens, shape.kv_heads, shape.head_dim}, 2), false},
          {"proj", parity::random(DType::f64, {row.tokens, shape.columns()}, 3), false}};
      c.outputs = {f64({row.tokens, shape.query_heads, shape.head_dim})};
      c.forward = [&](Stream& s, const auto& in, auto& out) {
        ops::attention_forward(s, out[0].view(), lse.view(), in[0].value.view(), in[1].value.view(),
                               in[2].value.view(), row.segments(), shape);
      };
      c.backward = [&](Stream& s, const auto& in, const auto& out, const auto& dout, auto& din) {
        clear(s, din[2]);
        ops::attention_backward(s, din[0].view(), din[1].view(), din[2].view(), dout[0].view(), out[0].view(),
                                in[0].value.view(), in[1].value.view(), in[2].value.view(), lse.view(),
                                row.segments(), shape);
      };
      gradcheck::check(c);
    }
  }
}

TEST(AttentionGradient, SigmoidGate) {
  for (const AttentionShape& shape : {small, odd}) {
    for (const int64_t tokens : gradcheck::edge_lengths()) {
      SCOPED_TRACE(tokens);
      gradcheck::Case c;
      c.inputs = {{"o", parity::random(DType::f64, {tokens, shape.query_heads, shape.head_dim}, 1), false},
                  {"proj", parity::random(DType::f64, {tokens, shape.columns()}, 2), false}};
      c.outputs = {f64({tokens, shape.query_heads, shape.head_dim})};
      c.forward = [&](Stream& s, const auto& in, auto& out) {
        ops::sigmoid_gate_forward(s, out[0].view(), in[0].value.view(), in[1].value.view(), shape);
      };
      c.backward = [&](Stream& s, const auto& in, const auto&, const auto& dout, auto& din) {
        clear(s, din[1]);
        ops::sigmoid_gate_backward(s, din[0].view(), din[1].view(), dout[0].view(), in[0].value.view(),
                                   in[1].value.view(), shape);
      };
      c.probes = 80;
      gradcheck::check(c);
    }
  }
}

TEST(AttentionOp, CostCountsVisiblePairsOnly) {
  Call call(DType::f32, small, {3, 1, 64});
  const auto device = make_null_device(Target::cpu);
  const auto stream = device->make_stream("plan");
  call.forward(*stream);
  call.backward(*stream);
  const double pairs = 6 + 1 + 64 * 65 / 2;
  const double forward = 4 * pairs * static_cast<double>(small.head_dim * small.query_heads);
  EXPECT_EQ(stream->totals()[static_cast<size_t>(Op::attention_forward)].flops, forward);
  EXPECT_EQ(stream->totals()[static_cast<size_t>(Op::attention_backward)].flops, 2.5 * forward);
}

}  // namespace
}  // namespace deltatune
