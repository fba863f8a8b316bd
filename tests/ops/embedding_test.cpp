// Embedding, gather and scatter.
#include "ops/embedding.h"

#include <numeric>

#include "ops/gradcheck.h"
#include "ops/parity.h"

namespace deltatune {
namespace {

using parity::Array;

struct Sizes {
  int64_t tokens, width;
  int32_t vocabulary;
};
const std::vector<Sizes> all_sizes = {{1, 1, 1}, {2, 63, 2}, {65, 64, 7}, {200, 65, 300}, {64, 130, 1}};

/// Positions sorted stably by token id.
Array order_of(const Array& tokens) {
  std::vector<double> ids = tokens.values();
  std::vector<double> order(ids.size());
  std::iota(order.begin(), order.end(), 0.0);
  std::stable_sort(order.begin(), order.end(), [&](double a, double b) {
    return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
  });
  return {DType::i32, tokens.shape(), order};
}

class Embedding : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Storage, Embedding, testing::ValuesIn(parity::storage_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Embedding, LooksUpAndSumsByToken) {
  const DType dtype = GetParam();
  for (const Sizes s : all_sizes) {
    SCOPED_TRACE(testing::Message() << s.tokens << " x " << s.width << ", " << s.vocabulary);
    const Array tokens = parity::random_ids({s.tokens}, s.vocabulary, 1);
    const Array order = order_of(tokens);
    const Array weight = parity::random(dtype, {s.vocabulary, s.width}, 2);
    Array y(dtype, {s.tokens, s.width});
    parity::run_twice({&y}, [&](Stream& stream) {
      ops::embedding_forward(stream, y.view(), tokens.view(), weight.view());
    });
    const Array dy = parity::random(dtype, y.shape(), 3);
    Array dweight = parity::random(compute_dtype(dtype), weight.shape(), 4);
    auto expected = dweight.values();
    const auto ids = tokens.values();
    const auto w = weight.values();
    const auto actual = y.values();
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t j = 0; j < s.width; ++j) {
        const auto at = static_cast<size_t>(static_cast<int64_t>(ids[static_cast<size_t>(t)]) * s.width + j);
        const auto i = static_cast<size_t>(t * s.width + j);
        EXPECT_EQ(actual[i], w[at]);
        expected[at] += dy.values()[i];
      }
    }
    parity::run_twice({&dweight}, [&](Stream& stream) {
      ops::embedding_backward(stream, dweight.view(), dy.view(), tokens.view(), order.view());
    });
    parity::expect_close(dweight, expected, "dweight");
  }
}

TEST(EmbeddingOp, UntouchedRowsKeepTheirBits) {
  const Array tokens(DType::i32, {3}, {4, 1, 4});
  const Array order(DType::i32, {3}, {1, 0, 2});
  const Array dy(DType::f32, {3, 2}, {1, 2, 3, 4, 5, 6});
  Array dweight(DType::f32, {6, 2}, std::vector<double>(12, 0.5));
  parity::run_twice({&dweight}, [&](Stream& stream) {
    ops::embedding_backward(stream, dweight.view(), dy.view(), tokens.view(), order.view());
  });
  EXPECT_EQ(dweight.values(), (std::vector<double>{.5, .5, 3.5, 4.5, .5, .5, .5, .5, 6.5, 8.5, .5, .5}));
}

TEST(EmbeddingOp, Gradient) {
  for (const int64_t length : gradcheck::edge_lengths()) {
    SCOPED_TRACE(length);
    const Array tokens = parity::random_ids({length}, 5, 1);
    const Array order = order_of(tokens);
    gradcheck::Case c;
    c.inputs = {{"weight", parity::random(DType::f64, {5, 3}, 2), true}};
    c.outputs = {Array(DType::f64, {length, 3})};
    c.forward = [&](Stream& stream, const auto& in, auto& out) {
      ops::embedding_forward(stream, out[0].view(), tokens.view(), in[0].value.view());
    };
    c.backward = [&](Stream& stream, const auto&, const auto&, const auto& dout, auto& din) {
      ops::embedding_backward(stream, din[0].view(), dout[0].view(), tokens.view(), order.view());
    };
    gradcheck::check(c);
  }
}

/// The ids of several ranks, each with its order.
Array ids_of(const std::vector<Array>& tokens) {
  std::vector<double> out;
  for (const Array& own : tokens) {
    for (const double id : own.values()) out.push_back(id);
    for (const double position : order_of(own).values()) out.push_back(position);
  }
  const auto ranks = static_cast<int64_t>(tokens.size());
  return {DType::i32, {ranks, 2, tokens[0].count()}, out};
}

// The parts of a table, cut anywhere, against the whole: what they look up adds up to the rows, and their
// gradients are stretches of the sum over ranks of each rank's own, to the bit.
TEST_P(Embedding, PartsAreTheTable) {
  const DType dtype = GetParam();
  constexpr int64_t vocabulary = 37, width = 70, ranks = 3;
  for (const int64_t length : {1, 2, 63, 130}) {
    // Ids of their own, ids that all have, and long runs.
    std::vector<Array> tokens;
    for (int64_t r = 0; r < ranks; ++r)
      tokens.push_back(
          parity::random_ids({length}, r == 1 ? 3 : vocabulary, static_cast<uint64_t>(r + length)));
    const Array ids = ids_of(tokens);
    const Array weight = parity::random(dtype, {vocabulary, width}, 2);
    const Array dy = parity::random(dtype, {ranks, length, width}, 3);
    Array start = parity::random(compute_dtype(dtype), weight.shape(), 4);
    // What ranks with a table each and a sum over them would give.
    Array sum(compute_dtype(dtype), weight.shape(),
              std::vector<double>(static_cast<size_t>(vocabulary * width)));
    Array whole_y(dtype, dy.shape());
    parity::Runner run;
    for (int64_t r = 0; r < ranks; ++r) {
      const Array order = order_of(tokens[static_cast<size_t>(r)]);
      Array own(compute_dtype(dtype), weight.shape(),
                std::vector<double>(static_cast<size_t>(vocabulary * width)));
      run([&](Stream& stream) {
        const Tensor rows = whole_y.view().slice(r, 1).reshaped({length, width});
        ops::embedding_forward(stream, rows, tokens[static_cast<size_t>(r)].view(), weight.view());
        ops::embedding_backward(stream, own.view(), dy.view().slice(r, 1).reshaped({length, width}),
                                tokens[static_cast<size_t>(r)].view(), order.view());
        ops::add(stream, sum.view(), own.view());
      });
    }
    Array expected = start;
    run([&](Stream& stream) { ops::add(stream, expected.view(), sum.view()); });
    std::vector<double> found(static_cast<size_t>(dy.count()));
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1000}, {1000, 1}, {1001, 1589}}) {
      SCOPED_TRACE(testing::Message() << length << " tokens, from element " << first);
      const auto stretch = [&, b = first, n = count](const Array& x) {
        const std::vector<double> all = x.values();
        return Array(x.dtype(), {n}, {all.begin() + b, all.begin() + b + n});
      };
      const Array part = stretch(weight);
      Array y(dtype, dy.shape());
      parity::run_twice({&y}, [&, b = first](Stream& stream) {
        ops::embedding_part_forward(stream, y.view(), ids.view(), part.view(), b);
      });
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(found[i] == 0 || y.values()[i] == 0);
        found[i] += y.values()[i];
      }
      Array dpart = stretch(start);
      parity::run_twice({&dpart}, [&, b = first](Stream& stream) {
        ops::embedding_part_backward(stream, dpart.view(), dy.view(), ids.view(), b);
      });
      EXPECT_EQ(dpart.values(), stretch(expected).values());
    }
    EXPECT_EQ(found, whole_y.values());
  }
}

TEST(EmbeddingOp, IdOutOfRangeIsCaught) {
  const Array tokens(DType::i32, {1}, {7});
  const Array weight = parity::random(DType::f32, {7, 4}, 1);
  Array y(DType::f32, {1, 4});
  parity::Runner run;
  EXPECT_THROW(run([&](Stream& s) { ops::embedding_forward(s, y.view(), tokens.view(), weight.view()); }),
               Error);
}

TEST(RowsOp, GatherTakesAndScatterPutsBackWithZerosElsewhere) {
  for (const DType dtype : parity::storage_dtypes) {
    const Array x = parity::random(dtype, {70, 33}, 1);
    const Array rows(DType::i32, {4}, {69, 0, 33, 12});
    Array y(dtype, {4, 33});
    parity::run_twice({&y}, [&](Stream& s) { ops::gather_rows(s, y.view(), x.view(), rows.view()); });
    Array back(dtype, x.shape());
    parity::run_twice({&back}, [&](Stream& s) { ops::scatter_rows(s, back.view(), y.view(), rows.view()); });
    const auto values = x.values();
    const auto picked = y.values();
    const auto scattered = back.values();
    const std::vector<double> index = rows.values();
    for (size_t t = 0; t < 70; ++t) {
      const auto at = std::find(index.begin(), index.end(), static_cast<double>(t));
      for (size_t j = 0; j < 33; ++j) {
        EXPECT_EQ(scattered[t * 33 + j], at == index.end() ? 0.0 : values[t * 33 + j]);
        if (at != index.end()) {
          EXPECT_EQ(picked[static_cast<size_t>(at - index.begin()) * 33 + j], values[t * 33 + j]);
        }
      }
    }
  }
}

TEST(RowsOp, ScatterIsTheGradientOfGather) {
  for (const int64_t tokens : gradcheck::edge_lengths()) {
    SCOPED_TRACE(tokens);
    // Every other token, the last one first.
    std::vector<double> chosen;
    for (int64_t t = tokens - 1; t >= 0; t -= 2) chosen.push_back(static_cast<double>(t));
    const auto count = static_cast<int64_t>(chosen.size());
    const Array rows(DType::i32, {count}, chosen);
    gradcheck::Case c;
    c.inputs = {{"x", parity::random(DType::f64, {tokens, 3}, 1), false}};
    c.outputs = {Array(DType::f64, {count, 3})};
    c.forward = [&](Stream& s, const auto& in, auto& out) {
      ops::gather_rows(s, out[0].view(), in[0].value.view(), rows.view());
    };
    c.backward = [&](Stream& s, const auto&, const auto&, const auto& dout, auto& din) {
      ops::scatter_rows(s, din[0].view(), dout[0].view(), rows.view());
    };
    gradcheck::check(c);
  }
}

}  // namespace
}  // namespace deltatune
