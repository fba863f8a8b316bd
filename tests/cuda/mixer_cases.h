// Inputs and outputs of the token-mixing ops for tests against the cpu row.
#pragma once

#include "cuda/cuda_case.h"

namespace deltatune::cuda_case {

using parity::random;
using parity::Row;

inline std::vector<int32_t> ones(size_t count) {
  return std::vector<int32_t>(count, 1);
}

/// Values in [low, high].
inline Array uniform(DType dtype, Shape shape, uint64_t stream, double low, double high) {
  Rng rng(20240613, stream);
  std::vector<double> values(static_cast<size_t>(shape.count()));
  for (double& value : values) value = low + (high - low) * rng.uniform();
  return {dtype, shape, values};
}

/// Rows of normal values scaled to length 1, then rounded.
inline Array unit_rows(DType dtype, Shape shape, uint64_t stream) {
  std::vector<double> values = parity::normal(shape.count(), stream);
  const size_t n = static_cast<size_t>(shape[shape.rank - 1]);
  for (size_t row = 0; row < values.size(); row += n) {
    double squares = 1e-6;
    for (size_t j = 0; j < n; ++j) squares += values[row + j] * values[row + j];
    for (size_t j = 0; j < n; ++j) values[row + j] /= std::sqrt(squares);
  }
  return {dtype, shape, values};
}

/// Inputs and outputs of the delta rule on one packed row.
struct DeltaCase {
  DType dtype;
  GdnShape shape;
  Row row;
  Array q, k, v, g, beta, d_o;
  Array o, states, dq, dk, dv, dg, dbeta;

  DeltaCase(DType storage, const GdnShape& s, const std::vector<int32_t>& lengths)
      : dtype(storage), shape(s), row(lengths) {
    const int64_t T = row.tokens, Hv = shape.value_heads;
    const Shape keys{T, shape.key_heads, shape.key_dim}, values{T, Hv, shape.value_dim};
    q = unit_rows(dtype, keys, 1);
    k = unit_rows(dtype, keys, 2);
    v = random(dtype, values, 3);
    g = uniform(DType::f32, {T, Hv}, 4, -0.2, 0);
    beta = uniform(DType::f32, {T, Hv}, 5, 0, 1);
    d_o = random(dtype, values, 6);
    o = Array(dtype, values);
    states = Array(dtype, {row.num_chunks, Hv, shape.key_dim, shape.value_dim});
    dq = Array(dtype, keys);
    dk = Array(dtype, keys);
    dv = Array(dtype, values);
    dg = Array(DType::f32, {T, Hv});
    dbeta = Array(DType::f32, {T, Hv});
  }

  /// `fast`, `fast_states`: bounds of kernels with operands in bf16; so in backward.
  std::vector<Result> forward(double fast = 1e-4, double fast_states = 1e-4) {
    return compare({rounds_inside(&o, fast), rounds_inside(&states, fast_states)},
                   [&](Stream& stream, const On& on) {
                     ops::gated_delta_forward(stream, on(o), on(states), on(q), on(k), on(v), on(g), on(beta),
                                              on.segments(row), shape);
                   });
  }
  /// From the states of the cpu row. dg_nmse: of the plain kernel; fast_dg: of the fast ones.
  std::vector<Result> backward(double dg_nmse = -1, double fast = 1e-4, double fast_dg = 1e-4) {
    return compare({rounds_inside(&dq, fast), rounds_inside(&dk, fast), rounds_inside(&dv, fast),
                    rounds_inside(&dg, fast_dg, dg_nmse), rounds_inside(&dbeta, fast)},
                   [&](Stream& stream, const On& on) {
                     ops::gated_delta_backward(stream, on(dq), on(dk), on(dv), on(dg), on(dbeta), on(d_o),
                                               on(states), on(q), on(k), on(v), on(g), on(beta),
                                               on.segments(row), shape);
                   });
  }
};

/// Inputs and outputs of the three attention ops on one packed row.
struct AttentionCase {
  DType dtype;
  AttentionShape shape;
  Row row;
  Array proj, q, k, d_o, dproj, o, lse, dq, dk;

  AttentionCase(DType storage, const AttentionShape& s, const std::vector<int32_t>& lengths)
      : dtype(storage), shape(s), row(lengths) {
    const int64_t T = row.tokens;
    const Shape queries{T, shape.query_heads, shape.head_dim}, keys{T, shape.kv_heads, shape.head_dim};
    proj = random(dtype, {T, shape.columns()}, 1);
    q = random(dtype, queries, 2);
    k = random(dtype, keys, 3);
    d_o = random(dtype, queries, 4);
    dproj = Array(dtype, proj.shape());
    o = Array(dtype, queries);
    lse = Array(DType::f32, {shape.query_heads, T});
    dq = Array(dtype, queries);
    dk = Array(dtype, keys);
  }
  std::vector<Result> forward() {
    return compare({&o, &lse}, [&](Stream& stream, const On& on) {
      ops::attention_forward(stream, on(o), on(lse), on(q), on(k), on(proj), on.segments(row), shape);
    });
  }
  /// From the o and lse of the cpu row. A document of one token has probability 1 whatever its score: dq and
  /// dk are 0 but for rounding, and where a row has no other there is nothing to compare but their size. It
  /// is that of (d_o v - d_o o) times k or q and the scale: two sums of d products in fp32, each within d
  /// 2^-24 sum |d_o v| of the truth (Higham, "Accuracy and Stability of Numerical Algorithms", 3.1).
  std::vector<Result> backward() {
    const bool trivial = row.num_chunks == row.tokens;
    const double nmse = trivial ? 1e30 : -1;
    const auto gradients = compare({{&dq, nmse}, {&dk, nmse}, &dproj}, [&](Stream& stream, const On& on) {
      ops::attention_backward(stream, on(dq), on(dk), on(dproj), on(d_o), on(o), on(q), on(k), on(proj),
                              on(lse), on.segments(row), shape);
    });
    for (const Result& result : gradients) {
      for (size_t i = 0; trivial && i < 2; ++i) {
        const double bound = trivial_bound(i == 0 ? k : q, i == 0 ? 1 : shape.query_heads / shape.kv_heads);
        for (const double x : result.outputs[i].values())
          EXPECT_LE(std::fabs(x), bound) << result.kernel->name;
      }
    }
    return gradients;
  }

 private:
  /// `terms` such products are summed; `other` is what they are multiplied by.
  double trivial_bound(const Array& other, int64_t terms) const {
    const int64_t d = shape.head_dim, group = shape.query_heads / shape.kv_heads;
    const std::vector<double> dos = d_o.values(), projs = proj.values();
    double largest_sum = 0, largest = 0;
    for (int64_t t = 0; t < row.tokens; ++t) {
      for (int64_t h = 0; h < shape.query_heads; ++h) {
        const int64_t v = t * shape.columns() + shape.v_column() + h / group * d;
        double sum = 0;
        for (int64_t j = 0; j < d; ++j) {
          sum += std::fabs(dos[static_cast<size_t>((t * shape.query_heads + h) * d + j)] *
                           projs[static_cast<size_t>(v + j)]);
        }
        largest_sum = std::max(largest_sum, sum);
      }
    }
    for (const double x : other.values()) largest = std::max(largest, std::fabs(x));
    const auto width = static_cast<double>(d);
    return static_cast<double>(terms) * 2 * width * 0x1p-24 * largest_sum * largest / std::sqrt(width);
  }
};

}  // namespace deltatune::cuda_case
