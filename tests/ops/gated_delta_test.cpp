// gated_delta: the recurrence against an independent chunked form, its gradient against central differences,
// precision in f32 and bf16, and no leak between documents.
#include <gtest/gtest.h>

#include "ops/delta_net_case.h"

namespace deltatune::delta_net_case {
namespace {

/// Inputs of one call, always held in double; `keys` and `gates` choose what is hard about them.
struct Inputs {
  GdnShape shape;
  Row row;
  std::vector<double> q, k, v, g, beta, dout;
};

enum class Keys { random, identical, zero };
enum class Gates { mixed, slow };

Inputs make_inputs(const GdnShape& shape, const std::vector<int32_t>& lengths, Keys keys = Keys::random,
                   Gates gates = Gates::mixed, uint64_t seed = 1) {
  Rng rng(seed);
  Inputs in{shape, Row(lengths), {}, {}, {}, {}, {}, {}};
  const int64_t T = in.row.tokens;
  in.q = normals(rng, T * shape.keys());
  in.k = normals(rng, T * shape.keys());
  const auto normalise = [&](std::vector<double>& x) {
    for (size_t i = 0; i < x.size(); i += static_cast<size_t>(shape.key_dim)) {
      double sum = 1e-6;
      for (size_t j = 0; j < static_cast<size_t>(shape.key_dim); ++j) sum += x[i + j] * x[i + j];
      for (size_t j = 0; j < static_cast<size_t>(shape.key_dim); ++j) x[i + j] /= std::sqrt(sum);
    }
  };
  if (keys == Keys::identical) {
    for (size_t i = static_cast<size_t>(shape.keys()); i < in.k.size(); ++i) {
      in.k[i] = in.k[i - static_cast<size_t>(shape.keys())];
    }
  }
  if (keys == Keys::zero) std::fill(in.k.begin(), in.k.end(), 0.0);
  normalise(in.q);
  normalise(in.k);
  in.v = normals(rng, T * shape.values());
  in.dout = normals(rng, T * shape.values());
  for (int64_t i = 0; i < T * shape.value_heads; ++i) {
    constexpr double decays[] = {0, -1e-3, -20};
    constexpr double betas[] = {0, 1, 1 - 1e-9};
    const uint64_t kind = rng.below(6);
    const double random_g = gates == Gates::slow ? -rng.uniform(0.005, 0.05) : -std::fabs(rng.normal());
    in.g.push_back(gates == Gates::slow || kind > 2 ? random_g : decays[kind]);
    const uint64_t beta_kind = rng.below(6);
    in.beta.push_back(beta_kind > 2 ? rng.uniform() : betas[beta_kind]);
  }
  return in;
}

struct Outputs {
  Array o, states, dq, dk, dv, dg, dbeta;

  std::vector<Array*> all() { return {&o, &states, &dq, &dk, &dv, &dg, &dbeta}; }
};

struct Tensors {
  Array q, k, v, g, beta, dout;

  Tensors(const Inputs& in, DType storage) {
    const GdnShape& s = in.shape;
    const int64_t T = in.row.tokens;
    const DType compute = compute_dtype(storage);
    q = Array(storage, {T, s.key_heads, s.key_dim}, in.q);
    k = Array(storage, {T, s.key_heads, s.key_dim}, in.k);
    v = Array(storage, {T, s.value_heads, s.value_dim}, in.v);
    g = Array(compute, {T, s.value_heads}, in.g);
    beta = Array(compute, {T, s.value_heads}, in.beta);
    dout = Array(storage, {T, s.value_heads, s.value_dim}, in.dout);
  }
};

Array forward(const Inputs& in, DType storage) {
  Tensors x(in, storage);
  Array o(storage, {in.row.tokens, in.shape.value_heads, in.shape.value_dim});
  run(Op::gated_delta_forward, [&](Stream& stream) {
    ops::gated_delta_forward(stream, o.view(), {}, x.q.view(), x.k.view(), x.v.view(), x.g.view(),
                             x.beta.view(), in.row.segments(), in.shape);
  });
  EXPECT_TRUE(o.intact());
  return o;
}

void backward(const Inputs& in, const Tensors& x, Outputs& out) {
  run(Op::gated_delta_backward, [&](Stream& stream) {
    ops::gated_delta_backward(stream, out.dq.view(), out.dk.view(), out.dv.view(), out.dg.view(),
                              out.dbeta.view(), x.dout.view(), out.states.view(), x.q.view(), x.k.view(),
                              x.v.view(), x.g.view(), x.beta.view(), in.row.segments(), in.shape);
  });
  for (Array* a : out.all()) EXPECT_TRUE(a->intact());
}

Outputs forward_and_backward(const Inputs& in, DType storage) {
  const GdnShape& s = in.shape;
  const int64_t T = in.row.tokens;
  const DType compute = compute_dtype(storage);
  Tensors x(in, storage);
  Outputs out{Array(storage, {T, s.value_heads, s.value_dim}),
              Array(storage, {in.row.capacity(), s.value_heads, s.key_dim, s.value_dim}),
              Array(storage, {T, s.key_heads, s.key_dim}),
              Array(storage, {T, s.key_heads, s.key_dim}),
              Array(storage, {T, s.value_heads, s.value_dim}),
              Array(compute, {T, s.value_heads}),
              Array(compute, {T, s.value_heads})};
  run(Op::gated_delta_forward, [&](Stream& stream) {
    ops::gated_delta_forward(stream, out.o.view(), out.states.view(), x.q.view(), x.k.view(), x.v.view(),
                             x.g.view(), x.beta.view(), in.row.segments(), s);
  });
  backward(in, x, out);
  return out;
}

using Matrix = std::vector<double>;

/// One chunk of n tokens of one value head in the chunked form (Yang et al. 2024): with G the running sum of
/// g,
///   L_ij = beta_i k_i.k_j (i > j),  T = (I + L)^-1,  Gam_ij = e^(G_i - G_j),  A = Gam o T diag(beta),
///   D = A (V - e^G o K S),  O = scale (e^G o Q S + (Gam o tril(Q K^T)) D),
///   S' = e^G_n S + K^T (e^(G_n - G) o D).
/// `at(x, t, i)` reads row t of an input.
void chunk_reference(const Inputs& in, int64_t first, int64_t n, int64_t h, Matrix& S, Matrix& o) {
  const GdnShape& s = in.shape;
  const int64_t dk = s.key_dim, dv = s.value_dim, key_head = h / s.ratio();
  const auto key = [&](const Matrix& x, int64_t t, int64_t i) {
    return x[static_cast<size_t>(((first + t) * s.key_heads + key_head) * dk + i)];
  };
  const auto gate = [&](const Matrix& x, int64_t t) {
    return x[static_cast<size_t>((first + t) * s.value_heads + h)];
  };
  const auto pair = [&](const Matrix& x, const Matrix& y, int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t i = 0; i < dk; ++i) sum += key(x, a, i) * key(y, b, i);
    return sum;
  };
  const auto at = [&](int64_t i, int64_t j, int64_t columns) { return static_cast<size_t>(i * columns + j); };
  const auto read_state = [&](const Matrix& x, int64_t t, int64_t j) {
    double sum = 0;
    for (int64_t i = 0; i < dk; ++i) sum += key(x, t, i) * S[at(i, j, dv)];
    return sum;
  };
  Matrix G(static_cast<size_t>(n)), T(static_cast<size_t>(n * n), 0), W(static_cast<size_t>(n * dv)),
      D(static_cast<size_t>(n * dv), 0);
  double running = 0;
  for (int64_t t = 0; t < n; ++t) G[at(t, 0, 1)] = running += gate(in.g, t);
  for (int64_t i = 0; i < n; ++i) {
    T[at(i, i, n)] = 1;
    for (int64_t m = 0; m < i; ++m) {
      const double L = gate(in.beta, i) * pair(in.k, in.k, i, m);
      for (int64_t j = 0; j <= m; ++j) T[at(i, j, n)] -= L * T[at(m, j, n)];
    }
  }
  const auto decay = [&](int64_t i, int64_t j) { return std::exp(G[at(i, 0, 1)] - G[at(j, 0, 1)]); };
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t j = 0; j < dv; ++j) {
      const double v = in.v[static_cast<size_t>(((first + t) * s.value_heads + h) * dv + j)];
      W[at(t, j, dv)] = v - std::exp(G[at(t, 0, 1)]) * read_state(in.k, t, j);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t m = 0; m <= i; ++m) {
      const double A = decay(i, m) * T[at(i, m, n)] * gate(in.beta, m);
      for (int64_t j = 0; j < dv; ++j) D[at(i, j, dv)] += A * W[at(m, j, dv)];
    }
  }
  const double scale = 1 / std::sqrt(static_cast<double>(dk));
  for (int64_t i = 0; i < n; ++i) {
    Matrix sum(static_cast<size_t>(dv));
    for (int64_t j = 0; j < dv; ++j) sum[at(j, 0, 1)] = std::exp(G[at(i, 0, 1)]) * read_state(in.q, i, j);
    for (int64_t m = 0; m <= i; ++m) {
      const double P = decay(i, m) * pair(in.q, in.k, i, m);
      for (int64_t j = 0; j < dv; ++j) sum[at(j, 0, 1)] += P * D[at(m, j, dv)];
    }
    for (int64_t j = 0; j < dv; ++j) {
      o[static_cast<size_t>(((first + i) * s.value_heads + h) * dv + j)] = scale * sum[at(j, 0, 1)];
    }
  }
  for (double& x : S) x *= std::exp(G[at(n - 1, 0, 1)]);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < dk; ++i) {
      for (int64_t j = 0; j < dv; ++j) S[at(i, j, dv)] += decay(n - 1, t) * key(in.k, t, i) * D[at(t, j, dv)];
    }
  }
}

/// The whole row in chunks of `chunk` tokens.
Matrix reference(const Inputs& in, int64_t chunk = gdn_chunk) {
  const GdnShape& s = in.shape;
  Matrix o(static_cast<size_t>(in.row.tokens * s.values()), NAN);
  for (size_t d = 0; d + 1 < in.row.starts.size(); ++d) {
    for (int64_t h = 0; h < s.value_heads; ++h) {
      Matrix S(static_cast<size_t>(s.key_dim * s.value_dim), 0);
      for (int64_t t = in.row.begin(d); t < in.row.end(d); t += chunk) {
        chunk_reference(in, t, std::min(chunk, in.row.end(d) - t), h, S, o);
      }
    }
  }
  return o;
}

struct Case {
  const char* name;
  GdnShape shape;
  Keys keys;
};

// Head ratios 1, 2 and 3; key_dim above and below value_dim, off and on every padding boundary.
const Case cases[] = {
    {"ratio 1", {2, 2, 3, 5, 4}, Keys::random},
    {"ratio 2", {1, 2, 16, 16, 4}, Keys::random},
    {"ratio 3", {2, 6, 8, 3, 4}, Keys::random},
    {"panel + 1", {1, 1, 17, 33, 4}, Keys::random},
    {"identical keys", {1, 2, 8, 16, 4}, Keys::identical},
    {"zero keys", {1, 2, 3, 4, 4}, Keys::zero},
};

TEST(GatedDelta, EqualsTheChunkedForm) {
  for (const Case& c : cases) {
    const Inputs in = make_inputs(c.shape, edge_lengths(), c.keys);
    EXPECT_LE(largest_difference(forward(in, DType::f64).values(), reference(in)), 1e-13) << c.name;
    EXPECT_LE(largest_difference(forward(in, DType::f64).values(), reference(in, 17)), 1e-13) << c.name;
  }
}

TEST(GatedDelta, SlowHeadsEqualTheChunkedFormOver700Tokens) {
  const Inputs in = make_inputs({1, 2, 16, 8, 4}, {700, 3, 700}, Keys::random, Gates::slow);
  EXPECT_LE(largest_difference(forward(in, DType::f64).values(), reference(in)), 1e-12);
}

TEST(GatedDelta, GradientIsTheDerivative) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Inputs in = make_inputs(c.shape, edge_lengths(), c.keys);
    const Outputs out = forward_and_backward(in, DType::f64);
    const auto loss = [&] { return dot(forward(in, DType::f64).values(), in.dout); };
    check_gradient("q", in.q, out.dq.values(), loss);
    check_gradient("k", in.k, out.dk.values(), loss);
    check_gradient("v", in.v, out.dv.values(), loss);
    check_gradient("g", in.g, out.dg.values(), loss);
    check_gradient("beta", in.beta, out.dbeta.values(), loss);
  }
}

TEST(GatedDelta, GradientOfSlowHeadsReachesAcrossChunks) {
  Inputs in = make_inputs({1, 2, 8, 16, 4}, {700, 200}, Keys::random, Gates::slow);
  // Only the last token of the first document is in the loss.
  for (size_t i = 0; i < in.dout.size(); ++i) {
    if (static_cast<int64_t>(i) / in.shape.values() != 699) in.dout[i] = 0;
  }
  const Outputs out = forward_and_backward(in, DType::f64);
  const auto loss = [&] { return dot(forward(in, DType::f64).values(), in.dout); };
  check_gradient("v", in.v, out.dv.values(), loss, 1e-4, 1e-8);
  check_gradient("k", in.k, out.dk.values(), loss, 1e-5, 1e-8);
  check_gradient("g", in.g, out.dg.values(), loss, 1e-5, 1e-8);
  double first_token = 0;
  for (int64_t i = 0; i < in.shape.values(); ++i) {
    first_token = std::max(first_token, std::fabs(out.dv.values()[static_cast<size_t>(i)]));
  }
  EXPECT_GT(first_token, 0);
}

// f32: each of the about dk + 64 roundings of 6e-8 that meet in a value adds incoherently, so the squared
// relative error is near (6e-8)^2 times a few hundred = 1e-12; 1e-10 is the contract. bf16: arithmetic is the
// same fp32 on inputs that both sides see rounded, the chunk states among backward's, and the store rounds by
// at most 2^-9, on average 1.4e-6 in this measure; dg and dbeta are fp32 and meet the f32 bound. Rounding the
// states, which backward starts each chunk from, costs the gradients no more than a store does.
TEST(GatedDelta, PrecisionInF32AndBf16) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(std::string(c.name) + " " + deltatune::name_of(storage));
      Inputs in = make_inputs(c.shape, edge_lengths(), c.keys);
      for (std::vector<double>* x : {&in.q, &in.k, &in.v, &in.dout}) *x = rounded(*x, storage);
      for (std::vector<double>* x : {&in.g, &in.beta}) *x = rounded(*x, DType::f32);
      Outputs low = forward_and_backward(in, storage);
      Outputs exact = forward_and_backward(in, DType::f64);
      const Outputs whole = exact;
      const double stored = storage == DType::bf16 ? 3e-6 : 1e-10;
      EXPECT_LE(nmse(low.o.values(), exact.o.values()), stored);
      const auto used = [&](const Array& states) {
        std::vector<double> values = states.values();
        values.resize(values.size() / static_cast<size_t>(in.row.capacity()) *
                      static_cast<size_t>(in.row.num_chunks));
        return values;
      };
      EXPECT_LE(nmse(used(low.states), used(exact.states)), stored);
      exact.states.set(low.states.values());
      backward(in, Tensors(in, DType::f64), exact);
      EXPECT_LE(nmse(low.dq.values(), exact.dq.values()), stored);
      EXPECT_LE(nmse(low.dk.values(), exact.dk.values()), stored);
      EXPECT_LE(nmse(low.dv.values(), exact.dv.values()), stored);
      EXPECT_LE(nmse(low.dg.values(), exact.dg.values()), 1e-10);
      EXPECT_LE(nmse(low.dbeta.values(), exact.dbeta.values()), 1e-10);
      EXPECT_LE(nmse(low.dq.values(), whole.dq.values()), stored);
      EXPECT_LE(nmse(low.dk.values(), whole.dk.values()), stored);
      EXPECT_LE(nmse(low.dv.values(), whole.dv.values()), stored);
      EXPECT_LE(nmse(low.dg.values(), whole.dg.values()), stored);
      EXPECT_LE(nmse(low.dbeta.values(), whole.dbeta.values()), stored);
    }
  }
}

TEST(GatedDelta, OtherDocumentsDoNotMatter) {
  const std::vector<int32_t> lengths = {700, 1, 65, 300};
  const Inputs in = make_inputs({1, 2, 16, 16, 4}, lengths, Keys::random, Gates::slow);
  Outputs before = forward_and_backward(in, DType::f32);
  for (size_t changed = 0; changed < lengths.size(); ++changed) {
    Inputs other = in;
    const Inputs fresh = make_inputs(in.shape, lengths, Keys::random, Gates::slow, 2);
    const auto replace = [&](std::vector<double>& x, const std::vector<double>& y) {
      const size_t row = x.size() / static_cast<size_t>(in.row.tokens);
      for (size_t i = static_cast<size_t>(in.row.begin(changed)) * row;
           i < static_cast<size_t>(in.row.end(changed)) * row; ++i) {
        x[i] = y[i];
      }
    };
    replace(other.q, fresh.q);
    replace(other.k, fresh.k);
    replace(other.v, fresh.v);
    replace(other.g, fresh.g);
    replace(other.beta, fresh.beta);
    replace(other.dout, fresh.dout);
    Outputs after = forward_and_backward(other, DType::f32);
    for (size_t d = 0; d < lengths.size(); ++d) {
      const int64_t begin = in.row.begin(d), end = in.row.end(d);
      for (const auto& [x, y] : {std::pair{&before.o, &after.o}, std::pair{&before.dq, &after.dq},
                                 std::pair{&before.dk, &after.dk}, std::pair{&before.dv, &after.dv},
                                 std::pair{&before.dg, &after.dg}, std::pair{&before.dbeta, &after.dbeta}}) {
        // dg of a one-token document is 0 whatever is in it: its S' is 0.
        const bool same = d != changed || (x == &before.dg && lengths[d] == 1);
        EXPECT_EQ(same_rows(*x, *y, begin, end), same) << "document " << d << ", changed " << changed;
      }
    }
  }
}

TEST(GatedDelta, LossOnOneDocumentGivesOthersNoGradient) {
  const std::vector<int32_t> lengths = {130, 1, 64, 5, 129};
  for (size_t kept = 0; kept < lengths.size(); ++kept) {
    Inputs in = make_inputs({1, 3, 8, 8, 4}, lengths, Keys::random, Gates::slow);
    const auto is_kept = [&](size_t i, size_t count) {
      const int64_t t = static_cast<int64_t>(i / (count / static_cast<size_t>(in.row.tokens)));
      return t >= in.row.begin(kept) && t < in.row.end(kept);
    };
    for (size_t i = 0; i < in.dout.size(); ++i) {
      if (!is_kept(i, in.dout.size())) in.dout[i] = 0;
    }
    Outputs out = forward_and_backward(in, DType::f32);
    for (Array* a : {&out.dq, &out.dk, &out.dv, &out.dg, &out.dbeta}) {
      const std::vector<double> values = a->values();
      double inside = 0, outside = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        double& largest = is_kept(i, values.size()) ? inside : outside;
        largest = std::max(largest, std::fabs(values[i]));
      }
      EXPECT_EQ(outside, 0);
      // In a one-token document S' = 0, so nothing depends on g.
      EXPECT_EQ(inside > 0, a != &out.dg || lengths[kept] > 1);
    }
  }
}

TEST(GatedDelta, RepeatsBitForBitOnAnyNumberOfThreads) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    const Inputs in = make_inputs({2, 6, 16, 48, 4}, edge_lengths());
    Outputs first = forward_and_backward(in, storage);
    Outputs second = forward_and_backward(in, storage);
    Outputs alone;
    parallel_for(1, 1, [&](int64_t, int64_t, int) { alone = forward_and_backward(in, storage); });
    for (size_t i = 0; i < first.all().size(); ++i) {
      EXPECT_TRUE(*first.all()[i] == *second.all()[i]) << i;
      EXPECT_TRUE(*first.all()[i] == *alone.all()[i]) << i;
    }
    // Chunks that the row does not have are not written; states of the others start documents at 0.
    const std::vector<double> states = first.states.values();
    const size_t per_chunk = states.size() / static_cast<size_t>(in.row.capacity());
    for (size_t c = 0; c < static_cast<size_t>(in.row.capacity()); ++c) {
      const bool used = static_cast<int64_t>(c) < in.row.num_chunks;
      const bool starts_document = used && in.row.chunks[4 * c + 3] == 0;
      EXPECT_EQ(std::isnan(states[c * per_chunk]), !used) << c;
      EXPECT_TRUE(!starts_document || states[c * per_chunk] == 0) << c;
    }
    // Writing the states changes no output.
    EXPECT_TRUE(forward(in, storage) == first.o);
  }
}

TEST(GatedDelta, UnwantedGradientsChangeNothingElse) {
  const Inputs in = make_inputs({1, 2, 8, 8, 4}, {65, 3});
  Outputs all = forward_and_backward(in, DType::f32);
  Tensors x(in, DType::f32);
  Array dv(DType::f32, {in.row.tokens, 2, 8});
  run(Op::gated_delta_backward, [&](Stream& stream) {
    ops::gated_delta_backward(stream, {}, {}, dv.view(), {}, {}, x.dout.view(), all.states.view(), x.q.view(),
                              x.k.view(), x.v.view(), x.g.view(), x.beta.view(), in.row.segments(), in.shape);
  });
  EXPECT_TRUE(dv == all.dv);
}

// 10.49 MFLOP for a full chunk at head sizes of 128; a row of 65 tokens has a second chunk of one token.
TEST(GatedDelta, CountsTheChunksOfTheRow) {
  const auto flops = [](const std::vector<int32_t>& lengths) {
    const Inputs in = make_inputs({1, 1, 128, 128, 4}, lengths);
    Tensors x(in, DType::f32);
    Array o(DType::f32, {in.row.tokens, 1, 128});
    return run(Op::gated_delta_forward,
               [&](Stream& stream) {
                 ops::gated_delta_forward(stream, o.view(), {}, x.q.view(), x.k.view(), x.v.view(),
                                          x.g.view(), x.beta.view(), in.row.segments(), in.shape);
               })
        .flops;
  };
  EXPECT_EQ(flops({64}), 10485760);
  EXPECT_EQ(flops({65}), 10485760 + 6 * 128 * 128 + 8 * 128);
  EXPECT_EQ(flops({64, 64}), 2 * 10485760);
}

}  // namespace
}  // namespace deltatune::delta_net_case
