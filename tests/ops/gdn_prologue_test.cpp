// gdn_prologue: its three parts alone, the whole against a plain restatement, gradients against central
// differences, precision, and taps that stop at document starts.
#include "cpu/gdn_prologue.h"

#include <gtest/gtest.h>

#include "ops/delta_net.h"
#include "ops/delta_net_case.h"

namespace deltatune::delta_net_case {
namespace {

struct Inputs {
  GdnShape shape;
  Row row;
  std::vector<double> proj, conv, A_log, dt_bias;  // parameters and input
  std::vector<double> dq, dk, dv, dg, dbeta;       // gradients of the outputs
};

Inputs make_inputs(const GdnShape& shape, const std::vector<int32_t>& lengths, uint64_t seed = 1) {
  Rng rng(seed);
  Inputs in{shape, Row(lengths), {}, {}, {}, {}, {}, {}, {}, {}, {}};
  const int64_t T = in.row.tokens;
  in.proj = normals(rng, T * shape.columns());
  for (int64_t t = 0; t < T; ++t) {
    // Saturated gates: beta next to 0 and 1, softplus on both sides of its threshold of 20.
    const size_t gates = static_cast<size_t>(t * shape.columns() + shape.b_column());
    for (int64_t h = 0; h < 2 * shape.value_heads; ++h) {
      constexpr double extremes[] = {-30, 30, 25, -8};
      if (rng.below(3) == 0) in.proj[gates + static_cast<size_t>(h)] = extremes[rng.below(4)];
    }
  }
  in.conv = normals(rng, shape.channels() * shape.conv_width, 0.7);
  for (int64_t h = 0; h < shape.value_heads; ++h) {
    in.A_log.push_back(std::log(h == 0 ? 0.01 : rng.uniform(0.02, 16)));
    in.dt_bias.push_back(rng.normal());
  }
  in.dq = normals(rng, T * shape.keys());
  in.dk = normals(rng, T * shape.keys());
  in.dv = normals(rng, T * shape.values());
  in.dg = normals(rng, T * shape.value_heads);
  in.dbeta = normals(rng, T * shape.value_heads);
  return in;
}

struct Outputs {
  Array q, k, v, g, beta, q_rstd, k_rstd;
  std::vector<Array*> all() { return {&q, &k, &v, &g, &beta, &q_rstd, &k_rstd}; }
};
struct Gradients {
  Array dproj, dconv, dA_log, ddt_bias;
  std::vector<Array*> all() { return {&dproj, &dconv, &dA_log, &ddt_bias}; }
};

Outputs make_outputs(const Inputs& in, DType storage) {
  const GdnShape& s = in.shape;
  const int64_t T = in.row.tokens;
  const DType compute = compute_dtype(storage);
  return {Array(storage, {T, s.key_heads, s.key_dim}),
          Array(storage, {T, s.key_heads, s.key_dim}),
          Array(storage, {T, s.value_heads, s.value_dim}),
          Array(compute, {T, s.value_heads}),
          Array(compute, {T, s.value_heads}),
          Array(compute, {T, s.key_heads}),
          Array(compute, {T, s.key_heads})};
}

struct Parameters {
  Array proj, conv, A_log, dt_bias;
  Parameters(const Inputs& in, DType storage) {
    const GdnShape& s = in.shape;
    proj = Array(storage, {in.row.tokens, s.columns()}, in.proj);
    conv = Array(storage, {s.channels(), s.conv_width}, in.conv);
    A_log = Array(compute_dtype(storage), {s.value_heads}, in.A_log);
    dt_bias = Array(compute_dtype(storage), {s.value_heads}, in.dt_bias);
  }
};

Outputs forward(const Inputs& in, DType storage) {
  Parameters p(in, storage);
  Outputs out = make_outputs(in, storage);
  run(Op::gdn_prologue_forward, [&](Stream& stream) {
    ops::gdn_prologue_forward(stream, out.q.view(), out.k.view(), out.v.view(), out.g.view(), out.beta.view(),
                              out.q_rstd.view(), out.k_rstd.view(), p.proj.view(), p.conv.view(),
                              p.A_log.view(), p.dt_bias.view(), in.row.segments(), in.shape);
  });
  for (Array* a : out.all()) EXPECT_TRUE(a->intact());
  return out;
}

/// `start`: what the parameter gradients hold before the call, which must add to it.
Gradients backward(const Inputs& in, DType storage, double start = 0) {
  const GdnShape& s = in.shape;
  const int64_t T = in.row.tokens;
  const DType compute = compute_dtype(storage);
  Outputs out = forward(in, storage);
  Parameters p(in, storage);
  Array dq(storage, {T, s.key_heads, s.key_dim}, in.dq), dk(storage, {T, s.key_heads, s.key_dim}, in.dk);
  Array dv(storage, {T, s.value_heads, s.value_dim}, in.dv);
  Array dg(compute, {T, s.value_heads}, in.dg), dbeta(compute, {T, s.value_heads}, in.dbeta);
  const auto filled = [&](Shape shape) {
    return Array(compute, shape, std::vector<double>(static_cast<size_t>(shape.count()), start));
  };
  Gradients d{Array(storage, {T, s.columns()}), filled({s.channels(), s.conv_width}), filled({s.value_heads}),
              filled({s.value_heads})};
  run(Op::gdn_prologue_backward, [&](Stream& stream) {
    ops::gdn_prologue_backward(stream, d.dproj.view(), d.dconv.view(), d.dA_log.view(), d.ddt_bias.view(),
                               dq.view(), dk.view(), dv.view(), dg.view(), dbeta.view(), p.proj.view(),
                               p.conv.view(), p.A_log.view(), p.dt_bias.view(), out.q.view(), out.k.view(),
                               out.q_rstd.view(), out.k_rstd.view(), in.row.segments(), s);
  });
  for (Array* a : d.all()) EXPECT_TRUE(a->intact());
  return d;
}

/// dproj with the z columns, which the op does not own and must have left as NaN, set to 0.
std::vector<double> dproj_without_z(const Gradients& d, const GdnShape& s) {
  std::vector<double> values = d.dproj.values();
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % s.columns();
    if (column < s.z_column() || column >= s.b_column()) continue;
    EXPECT_TRUE(std::isnan(values[i])) << "z column written";
    values[i] = 0;
  }
  return values;
}

const GdnShape shapes[] = {{2, 2, 3, 5, 4}, {1, 2, 16, 16, 4}, {2, 6, 8, 3, 3}, {1, 3, 9, 8, 1}};

TEST(GdnConvSilu, StopsAtThePositionAndOrdersItsTaps) {
  // One channel, x = 10, 20, 30, 40; the last weight multiplies the current token.
  const double x[] = {0.1, 0.2, 0.3, 0.4};
  const double weights[] = {1, 10, 100, 1000};
  const auto silu = [](double c) { return c / (1 + std::exp(-c)); };
  double u = 0;
  cpu::gdn_conv_silu(&u, x + 3, weights, 1, 4, 1, 3);
  EXPECT_DOUBLE_EQ(u, silu(0.1 * 1 + 0.2 * 10 + 0.3 * 100 + 0.4 * 1000));
  cpu::gdn_conv_silu(&u, x + 3, weights, 1, 4, 1, 100);
  EXPECT_DOUBLE_EQ(u, silu(0.1 * 1 + 0.2 * 10 + 0.3 * 100 + 0.4 * 1000));
  cpu::gdn_conv_silu(&u, x + 3, weights, 1, 4, 1, 1);
  EXPECT_DOUBLE_EQ(u, silu(0.3 * 100 + 0.4 * 1000));
  cpu::gdn_conv_silu(&u, x + 3, weights, 1, 4, 1, 0);
  EXPECT_DOUBLE_EQ(u, silu(0.4 * 1000));
}

TEST(GdnL2norm, UsesTheSumAndItsEpsilon) {
  const double u[] = {3e-3, 4e-3, 0};
  double y[3];
  EXPECT_DOUBLE_EQ(cpu::gdn_l2norm(y, u, 3), 1 / std::sqrt(25e-6 + 1e-6));
  EXPECT_DOUBLE_EQ(y[1], 4e-3 / std::sqrt(26e-6));
  const float zeros[17] = {};
  float z[17];
  EXPECT_FLOAT_EQ(cpu::gdn_l2norm(z, zeros, 17), 1e3f);
  for (const float value : z) EXPECT_EQ(value, 0.0f);
}

TEST(GdnGates, SigmoidAndSoftplusAtTheirEnds) {
  const double a[] = {-60, 0, 19, 21}, b[] = {-800, 0, 40, 2};
  const double A_log[] = {0, std::log(16.0), std::log(0.01), 1}, dt_bias[] = {0, 0, 0.5, 0.5};
  double g[4], beta[4];
  cpu::gdn_gates(g, beta, a, b, A_log, dt_bias, 4);
  EXPECT_NEAR(g[0], -std::exp(-60), 1e-40);
  EXPECT_DOUBLE_EQ(g[1], -16 * std::log(2.0));
  EXPECT_DOUBLE_EQ(g[2], -0.01 * std::log1p(std::exp(19.5)));
  EXPECT_DOUBLE_EQ(g[3], -std::exp(1.0) * 21.5);
  EXPECT_EQ(beta[0], 0);
  EXPECT_DOUBLE_EQ(beta[1], 0.5);
  EXPECT_DOUBLE_EQ(beta[2], 1);
  EXPECT_DOUBLE_EQ(beta[3], 1 / (1 + std::exp(-2.0)));
}

/// The op restated one value at a time, from proj and the document starts.
TEST(GdnPrologue, EqualsItsFormulas) {
  for (const GdnShape& s : shapes) {
    const Inputs in = make_inputs(s, edge_lengths());
    const Outputs out = forward(in, DType::f64);
    const std::vector<double> q = out.q.values(), k = out.k.values(), v = out.v.values();
    for (size_t document = 0; document + 1 < in.row.starts.size(); ++document) {
      for (int64_t t = in.row.begin(document); t < in.row.end(document); ++t) {
        std::vector<double> u;
        for (int64_t c = 0; c < s.channels(); ++c) {
          double sum = 0;
          for (int64_t j = 0; j < s.conv_width; ++j) {
            const int64_t from = t - s.conv_width + 1 + j;
            if (from < in.row.begin(document)) continue;
            sum += in.conv[static_cast<size_t>(c * s.conv_width + j)] *
                   in.proj[static_cast<size_t>(from * s.columns() + c)];
          }
          u.push_back(sum / (1 + std::exp(-sum)));
        }
        for (int64_t c = 0; c < s.channels(); ++c) {
          const size_t i = static_cast<size_t>(c);
          if (c >= 2 * s.keys()) {
            ASSERT_NEAR(v[static_cast<size_t>(t * s.values() + c - 2 * s.keys())], u[i], 1e-14);
            continue;
          }
          double squares = 1e-6;
          const int64_t head = c / s.key_dim * s.key_dim;
          for (int64_t j = head; j < head + s.key_dim; ++j) {
            squares += u[static_cast<size_t>(j)] * u[static_cast<size_t>(j)];
          }
          const std::vector<double>& y = c < s.keys() ? q : k;
          ASSERT_NEAR(y[static_cast<size_t>(t * s.keys() + c % s.keys())], u[i] / std::sqrt(squares), 1e-13);
        }
      }
    }
  }
}

TEST(GdnPrologue, GradientIsTheDerivative) {
  for (const GdnShape& s : shapes) {
    Inputs in = make_inputs(s, edge_lengths());
    const Gradients d = backward(in, DType::f64);
    const auto loss = [&] {
      const Outputs out = forward(in, DType::f64);
      return dot(out.q.values(), in.dq) + dot(out.k.values(), in.dk) + dot(out.v.values(), in.dv) +
             dot(out.g.values(), in.dg) + dot(out.beta.values(), in.dbeta);
    };
    check_gradient("proj", in.proj, dproj_without_z(d, s), loss);
    check_gradient("conv", in.conv, d.dconv.values(), loss);
    check_gradient("A_log", in.A_log, d.dA_log.values(), loss);
    check_gradient("dt_bias", in.dt_bias, d.ddt_bias.values(), loss);
  }
}

// At u = 0 the l2norm has slope 1000 and bends within 1e-3: small steps, and room for slope^3 step^2.
TEST(GdnPrologue, GradientOfZeroKeys) {
  const GdnShape s{1, 2, 8, 8, 4};
  Inputs in = make_inputs(s, {65, 1, 3});
  for (size_t i = 0; i < in.proj.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % s.columns();
    if (column >= s.keys() && column < 2 * s.keys()) in.proj[i] = 0;
  }
  const Gradients d = backward(in, DType::f64);
  const auto loss = [&] {
    const Outputs out = forward(in, DType::f64);
    return dot(out.q.values(), in.dq) + dot(out.k.values(), in.dk) + dot(out.v.values(), in.dv);
  };
  std::vector<double> expected = dproj_without_z(d, s);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (static_cast<int64_t>(i) % s.columns() >= s.b_column()) expected[i] = 0;
  }
  check_gradient("proj", in.proj, expected, loss, 1e-7, 1e-5);
}

TEST(GdnPrologue, ParameterGradientsAccumulate) {
  const Inputs in = make_inputs({1, 2, 8, 8, 4}, edge_lengths());
  Gradients from_zero = backward(in, DType::f64), from_one = backward(in, DType::f64, 1);
  for (size_t i = 1; i < 4; ++i) {
    std::vector<double> expected = from_zero.all()[i]->values();
    for (double& x : expected) x += 1;
    EXPECT_LE(largest_difference(from_one.all()[i]->values(), expected), 1e-12);
  }
  EXPECT_TRUE(from_zero.dproj == from_one.dproj);
}

// f32: few roundings per value; q and k divide by a norm that can cancel, still far inside 1e-10. bf16: fp32
// arithmetic on inputs that both sides see rounded, one rounding at the store: 1.4e-6 on average. In backward
// q and k come back rounded to bf16, which dy - y (y . dy) passes on: some 5e-6 in all for dproj. dg, dbeta
// and dA_log never see a rounded intermediate.
TEST(GdnPrologue, PrecisionInF32AndBf16) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    for (const GdnShape& s : shapes) {
      Inputs in = make_inputs(s, edge_lengths());
      for (std::vector<double>* x : {&in.proj, &in.conv, &in.dq, &in.dk, &in.dv}) *x = rounded(*x, storage);
      for (std::vector<double>* x : {&in.A_log, &in.dt_bias, &in.dg, &in.dbeta}) *x = rounded(*x, DType::f32);
      const double stored = storage == DType::bf16 ? 3e-6 : 1e-10;
      Outputs low = forward(in, storage), exact = forward(in, DType::f64);
      for (size_t i = 0; i < low.all().size(); ++i) {
        EXPECT_LE(nmse(low.all()[i]->values(), exact.all()[i]->values()), i < 3 ? stored : 1e-10) << i;
      }
      Gradients low_d = backward(in, storage), exact_d = backward(in, DType::f64);
      const double passed_on = storage == DType::bf16 ? 1e-5 : 1e-10;
      EXPECT_LE(nmse(dproj_without_z(low_d, s), dproj_without_z(exact_d, s)), passed_on);
      EXPECT_LE(nmse(low_d.dconv.values(), exact_d.dconv.values()), passed_on);
      EXPECT_LE(nmse(low_d.dA_log.values(), exact_d.dA_log.values()), 1e-10);
      EXPECT_LE(nmse(low_d.ddt_bias.values(), exact_d.ddt_bias.values()), 1e-10);
    }
  }
}

TEST(GdnPrologue, OtherDocumentsDoNotMatter) {
  const std::vector<int32_t> lengths = edge_lengths();
  const GdnShape s{1, 2, 8, 8, 4};
  const Inputs in = make_inputs(s, lengths), fresh = make_inputs(s, lengths, 2);
  Outputs before = forward(in, DType::f32);
  const Gradients d_before = backward(in, DType::f32);
  for (size_t changed = 0; changed < lengths.size(); ++changed) {
    Inputs other = in;
    const size_t columns = static_cast<size_t>(s.columns());
    for (size_t i = static_cast<size_t>(in.row.begin(changed)) * columns;
         i < static_cast<size_t>(in.row.end(changed)) * columns; ++i) {
      other.proj[i] = fresh.proj[i];
    }
    Outputs after = forward(other, DType::f32);
    const Gradients d_after = backward(other, DType::f32);
    for (size_t d = 0; d < lengths.size(); ++d) {
      const int64_t begin = in.row.begin(d), end = in.row.end(d);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(same_rows(*before.all()[i], *after.all()[i], begin, end), d != changed)
            << d << " " << changed;
      }
      if (d == changed) continue;
      for (size_t i = 3; i < 7; ++i) {
        EXPECT_TRUE(same_rows(*before.all()[i], *after.all()[i], begin, end)) << d << " " << changed;
      }
      EXPECT_TRUE(same_rows(d_before.dproj, d_after.dproj, begin, end)) << d << " " << changed;
    }
  }
}

TEST(GdnPrologue, LossOnOneDocumentGivesOthersNoGradient) {
  const std::vector<int32_t> lengths = edge_lengths();
  for (size_t kept = 0; kept < lengths.size(); ++kept) {
    Inputs in = make_inputs({1, 2, 8, 8, 4}, lengths);
    const auto is_kept = [&](size_t i, size_t count) {
      const int64_t t = static_cast<int64_t>(i / (count / static_cast<size_t>(in.row.tokens)));
      return t >= in.row.begin(kept) && t < in.row.end(kept);
    };
    for (std::vector<double>* x : {&in.dq, &in.dk, &in.dv, &in.dg, &in.dbeta}) {
      for (size_t i = 0; i < x->size(); ++i) {
        if (!is_kept(i, x->size())) (*x)[i] = 0;
      }
    }
    const std::vector<double> dproj = dproj_without_z(backward(in, DType::f32), in.shape);
    double inside = 0, outside = 0;
    for (size_t i = 0; i < dproj.size(); ++i) {
      double& largest = is_kept(i, dproj.size()) ? inside : outside;
      largest = std::max(largest, std::fabs(dproj[i]));
    }
    EXPECT_EQ(outside, 0);
    EXPECT_GT(inside, 0);
  }
}

TEST(GdnPrologue, RepeatsBitForBitOnAnyNumberOfThreads) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    const Inputs in = make_inputs({2, 6, 8, 16, 4}, edge_lengths());
    Outputs out = forward(in, storage), out_again = forward(in, storage), out_alone;
    Gradients d = backward(in, storage), d_again = backward(in, storage), d_alone;
    parallel_for(1, 1, [&](int64_t, int64_t, int) {
      out_alone = forward(in, storage);
      d_alone = backward(in, storage);
    });
    for (size_t i = 0; i < out.all().size(); ++i) {
      EXPECT_TRUE(*out.all()[i] == *out_again.all()[i]) << i;
      EXPECT_TRUE(*out.all()[i] == *out_alone.all()[i]) << i;
    }
    for (size_t i = 0; i < d.all().size(); ++i) {
      EXPECT_TRUE(*d.all()[i] == *d_again.all()[i]) << i;
      EXPECT_TRUE(*d.all()[i] == *d_alone.all()[i]) << i;
    }
  }
}

TEST(GdnPrologue, UnwantedOutputsChangeNothingElse) {
  const Inputs in = make_inputs({1, 2, 8, 8, 4}, {65, 3});
  Parameters p(in, DType::f32);
  Outputs all = forward(in, DType::f32);
  for (size_t wanted = 0; wanted < 7; ++wanted) {
    Outputs out = make_outputs(in, DType::f32);
    const auto view = [&](size_t i) { return i == wanted ? out.all()[i]->view() : Tensor{}; };
    run(Op::gdn_prologue_forward, [&](Stream& stream) {
      ops::gdn_prologue_forward(stream, view(0), view(1), view(2), view(3), view(4), view(5), view(6),
                                p.proj.view(), p.conv.view(), p.A_log.view(), p.dt_bias.view(),
                                in.row.segments(), in.shape);
    });
    EXPECT_TRUE(*out.all()[wanted] == *all.all()[wanted]) << wanted;
  }
}

}  // namespace
}  // namespace deltatune::delta_net_case
