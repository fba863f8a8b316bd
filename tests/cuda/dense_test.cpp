// The dense rows of the cuda table against the cpu row: embedding, rows by index, norms, elementwise, loss.
#include <numeric>

#include "cuda/cuda_case.h"

namespace deltatune {
namespace {

using cuda_case::compare;
using cuda_case::compare_bits;
using cuda_case::On;
using cuda_case::Output;
using cuda_case::within_ulp;
using parity::Array;

class CudaDense : public cuda_case::CudaStorage {};
INSTANTIATE_TEST_SUITE_P(Storage, CudaDense, testing::ValuesIn(cuda_case::cuda_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });
class CudaAny : public cuda_case::Cuda {};

struct Sizes {
  int64_t rows, width;
};
/// Around warps, packs of 4 and 8, blocks of tokens; no rows at all; widths that no pack divides.
const std::vector<Sizes> all_sizes = {{0, 64},  {1, 2},     {1, 5120},  {2, 257},   {3, 1000},
                                      {63, 64}, {64, 4104}, {65, 1000}, {127, 257}, {300, 5120}};
constexpr float eps = 1e-6f;

testing::Message say(const Sizes& s) {
  return testing::Message() << s.rows << " x " << s.width;
}

/// Positions sorted stably by token id.
Array order_of(const Array& tokens) {
  std::vector<int32_t> order(static_cast<size_t>(tokens.count()));
  std::iota(order.begin(), order.end(), 0);
  const auto* id = tokens.view().as<int32_t>();
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return id[a] < id[b]; });
  return {DType::i32, tokens.shape(), {order.begin(), order.end()}};
}

TEST_P(CudaDense, Embedding) {
  const DType dtype = GetParam();
  constexpr int64_t vocabulary = 50000;
  for (const Sizes s : {Sizes{1, 64}, Sizes{300, 257}, Sizes{127, 64}, Sizes{64, 100}}) {
    const Array weight = parity::random(dtype, {vocabulary, s.width}, 1);
    const Array dy = parity::random(dtype, {s.rows, s.width}, 2);
    // Any ids; few distinct ones (long runs); all equal, at the end of the vocabulary.
    for (const int32_t limit : {int32_t{vocabulary}, 5, 1}) {
      SCOPED_TRACE(say(s) << ", ids below " << limit);
      Array tokens = parity::random_ids({s.rows}, limit, 3);
      if (limit == 1) tokens.set(std::vector<double>(static_cast<size_t>(s.rows), vocabulary - 1));
      const Array order = order_of(tokens);
      Array y(dtype, {s.rows, s.width});
      compare_bits({&y}, [&](Stream& stream, const On& on) {
        ops::embedding_forward(stream, on(y), on(tokens), on(weight));
      });
      Array dweight(DType::f32, {vocabulary, s.width},
                    std::vector<double>(static_cast<size_t>(vocabulary * s.width), 0.5));
      compare_bits({&dweight}, [&](Stream& stream, const On& on) {
        ops::embedding_backward(stream, on(dweight), on(dy), on(tokens), on(order));
      });
    }
  }
}

TEST_P(CudaDense, EmbeddingOfWideRowsAndOfNone) {
  const DType dtype = GetParam();
  for (const Sizes s : {Sizes{0, 64}, Sizes{65, 5120}}) {
    SCOPED_TRACE(say(s));
    const Array weight = parity::random(dtype, {97, s.width}, 1);
    const Array dy = parity::random(dtype, {s.rows, s.width}, 2);
    const Array tokens = parity::random_ids({s.rows}, 97, 3);
    const Array order = order_of(tokens);
    Array y(dtype, {s.rows, s.width});
    compare_bits({&y}, [&](Stream& stream, const On& on) {
      ops::embedding_forward(stream, on(y), on(tokens), on(weight));
    });
    Array dweight = parity::random(DType::f32, {97, s.width}, 4);
    compare_bits({&dweight}, [&](Stream& stream, const On& on) {
      ops::embedding_backward(stream, on(dweight), on(dy), on(tokens), on(order));
    });
  }
}

// Rows of several ranks in a stretch of the table; every kind of pack, ids of one rank and of all, more ranks
// than a warp has lanes.
TEST_P(CudaDense, EmbeddingOfAPart) {
  const DType dtype = GetParam();
  struct Case {
    int64_t ranks, tokens, width;
    int32_t vocabulary;
    int64_t first, count;
  };
  for (const Case c :
       {Case{2, 300, 1024, 200, 1024 * 77 + 128, 128 * 401}, Case{3, 65, 5120, 97, 0, 97 * 5120},
        Case{2, 127, 257, 60, 1001, 7777}, Case{40, 33, 64, 900, 128, 64 * 700},
        Case{1, 64, 100, 30, 2999, 1}, Case{2, 0, 64, 9, 0, 64}}) {
    for (const int32_t limit : {c.vocabulary, 3}) {
      SCOPED_TRACE(testing::Message()
                   << c.ranks << " x " << c.tokens << " x " << c.width << ", ids below " << limit);
      std::vector<double> values;
      for (int64_t r = 0; r < c.ranks; ++r) {
        const Array tokens =
            parity::random_ids({c.tokens}, r % 3 == 2 ? 1 : limit, static_cast<uint64_t>(r + 1));
        for (const Array& half : {tokens, order_of(tokens)}) {
          for (const double id : half.values()) values.push_back(id);
        }
      }
      const Array ids(DType::i32, {c.ranks, 2, c.tokens}, values);
      const Array part = parity::random(dtype, {c.count}, 1);
      Array y(dtype, {c.ranks, c.tokens, c.width});
      compare_bits({&y}, [&](Stream& stream, const On& on) {
        ops::embedding_part_forward(stream, on(y), on(ids), on(part), c.first);
      });
      const Array dy = parity::random(dtype, y.shape(), 2);
      Array dpart = parity::random(DType::f32, {c.count}, 3);
      compare_bits({&dpart}, [&](Stream& stream, const On& on) {
        ops::embedding_part_backward(stream, on(dpart), on(dy), on(ids), c.first);
      });
    }
  }
}

TEST_P(CudaDense, GatherAndScatter) {
  const DType dtype = GetParam();
  for (const Sizes s : all_sizes) {
    SCOPED_TRACE(say(s));
    const int64_t tokens = 2 * s.rows + 1;
    const Array x = parity::random(dtype, {tokens, s.width}, 1);
    const Array dy = parity::random(dtype, {s.rows, s.width}, 2);
    Array rows(DType::i32, {s.rows});  // distinct, descending
    for (int64_t n = 0; n < s.rows; ++n)
      rows.view().as<int32_t>()[n] = static_cast<int32_t>(tokens - 1 - 2 * n);
    Array y(dtype, dy.shape());
    compare_bits({&y},
                 [&](Stream& stream, const On& on) { ops::gather_rows(stream, on(y), on(x), on(rows)); });
    Array dx(dtype, x.shape());
    compare_bits({&dx},
                 [&](Stream& stream, const On& on) { ops::scatter_rows(stream, on(dx), on(dy), on(rows)); });
  }
}

TEST_P(CudaDense, Norms) {
  const DType dtype = GetParam();
  // And every number of packs a thread: rows of single elements, of whole packs, the widest.
  std::vector<Sizes> sizes = all_sizes;
  for (const Sizes s : {Sizes{3, 321}, Sizes{2, 1001}, Sizes{3, 2561}, Sizes{2, 9999}, Sizes{17, 5136},
                        Sizes{3, 2560}, Sizes{2, 10240}, Sizes{600, 1280}})
    sizes.push_back(s);
  for (const Sizes s : sizes) {
    SCOPED_TRACE(say(s));
    const Array x = parity::random(dtype, {s.rows, s.width}, 1);
    const Array delta = parity::random(dtype, x.shape(), 5, 0.1);
    const Array w = parity::random(dtype, {s.width}, 2, 0.3);
    const Array dy = parity::random(dtype, x.shape(), 3);
    const Array dsum = parity::random(dtype, x.shape(), 6);
    Array y(dtype, x.shape());
    Array rstd(DType::f32, {s.rows});
    compare({&y, &rstd}, [&](Stream& stream, const On& on) {
      ops::rmsnorm_forward(stream, on(y), on(rstd), on(x), on(w), eps);
    });
    Array dx(dtype, x.shape());
    Array dw = parity::random(DType::f32, {s.width}, 4);
    compare({&dx, &dw}, [&](Stream& stream, const On& on) {
      ops::rmsnorm_backward(stream, on(dx), on(dw), on(dy), on(x), on(w), on(rstd));
    });
    Array sum(dtype, x.shape());
    compare({within_ulp(&sum, 0), &y, &rstd}, [&](Stream& stream, const On& on) {
      ops::add_rmsnorm_forward(stream, on(sum), on(y), on(rstd), on(x), on(delta), on(w), eps);
    });
    compare({&dx, &dw}, [&](Stream& stream, const On& on) {
      ops::add_rmsnorm_backward(stream, on(dx), on(dw), on(dy), on(dsum), on(sum), on(w), on(rstd));
    });
  }
}

TEST_P(CudaDense, NormsInPlaceOverManyTokensAndInPart) {
  const DType dtype = GetParam();
  // More tokens than blocks of partial sums.
  for (const Sizes s : {Sizes{9000, 72}, Sizes{900, 5120}}) {
    SCOPED_TRACE(say(s));
    Array x = parity::random(dtype, {s.rows, s.width}, 1);
    const Array delta = parity::random(dtype, x.shape(), 5, 0.1);
    const Array w = parity::random(dtype, {s.width}, 2, 0.3);
    Array rstd(DType::f32, {s.rows});
    compare({within_ulp(&x, 0), &rstd}, [&](Stream& stream, const On& on) {
      ops::add_rmsnorm_forward(stream, on(x), Tensor{}, on(rstd), on(x), on(delta), on(w), eps);
    });
    Array dy = parity::random(dtype, x.shape(), 3);
    Array dsum = parity::random(dtype, x.shape(), 6);
    Array dw = parity::random(DType::f32, {s.width}, 4);
    compare({&dsum, &dw}, [&](Stream& stream, const On& on) {
      ops::add_rmsnorm_backward(stream, on(dsum), on(dw), on(dy), on(dsum), on(x), on(w), on(rstd));
    });
    compare({&dy}, [&](Stream& stream, const On& on) {
      ops::rmsnorm_backward(stream, on(dy), Tensor{}, on(dy), on(x), on(w), on(rstd));
    });
    compare({&dw}, [&](Stream& stream, const On& on) {
      ops::rmsnorm_backward(stream, Tensor{}, on(dw), on(dsum), on(x), on(w), on(rstd));
    });
  }
}

/// Rows of an odd width: the second row lies at an odd multiple of the element size.
TEST_P(CudaDense, SlicesOfOddRows) {
  const DType dtype = GetParam();
  const Array x = parity::random(dtype, {9, 257}, 1);
  const Array w = parity::random(dtype, {257}, 2, 0.3);
  Array y(dtype, x.shape());
  Array rstd(DType::f32, {9});
  compare({&y, &rstd}, [&](Stream& stream, const On& on) {
    ops::rmsnorm_forward(stream, on(y).slice(1, 7), on(rstd).slice(1, 7), on(x).slice(1, 7), on(w), eps);
  });
  Array sums = x;
  compare({within_ulp(&sums, 0)},
          [&](Stream& stream, const On& on) { ops::add(stream, on(sums).slice(1, 7), on(x).slice(1, 7)); });
  Array copy(dtype, x.shape());
  compare_bits({&copy}, [&](Stream& stream, const On& on) {
    ops::cast(stream, on(copy).slice(1, 7), on(x).slice(1, 7));
  });
  const Array targets = parity::random_ids({7}, 257, 3);
  Array loss(DType::f64, {1}, {0});
  Array logits = x;
  compare({{&loss, 1e-13}, &logits}, [&](Stream& stream, const On& on) {
    ops::cross_entropy(stream, on(loss), on(logits).slice(1, 7), on(logits).slice(1, 7), on(targets));
  });
}

TEST_P(CudaDense, Swiglu) {
  const DType dtype = GetParam();
  for (const Sizes s : all_sizes) {
    SCOPED_TRACE(say(s));
    Array gate_up = parity::random(dtype, {s.rows, 2 * s.width}, 1, 3.0);
    const Array dy = parity::random(dtype, {s.rows, s.width}, 2);
    Array y(dtype, dy.shape());
    // f32: exponentials of 1 and 2 ulp, then 1 / (1 + e) and two products on either side.
    compare({within_ulp(&y, dtype == DType::bf16 ? 2 : 8)},
            [&](Stream& stream, const On& on) { ops::swiglu_forward(stream, on(y), on(gate_up)); });
    Array dgate_up(dtype, gate_up.shape());
    compare({&dgate_up}, [&](Stream& stream, const On& on) {
      ops::swiglu_backward(stream, on(dgate_up), on(dy), on(gate_up));
    });
    compare({&gate_up}, [&](Stream& stream, const On& on) {
      ops::swiglu_backward(stream, on(gate_up), on(dy), on(gate_up));
    });
    EXPECT_TRUE(gate_up == dgate_up);
  }
}

TEST_P(CudaDense, SwigluOfLargeGates) {
  const DType dtype = GetParam();
  const Array gate_up(dtype, {1, 8}, {200, -200, 88, -88, 1, 1, 1, 1});
  const Array dy(dtype, {1, 4}, {1, 1, 1, 1});
  Array y(dtype, dy.shape());
  compare({&y}, [&](Stream& stream, const On& on) { ops::swiglu_forward(stream, on(y), on(gate_up)); });
  Array dgate_up(dtype, gate_up.shape());
  compare({&dgate_up}, [&](Stream& stream, const On& on) {
    ops::swiglu_backward(stream, on(dgate_up), on(dy), on(gate_up));
  });
}

const std::vector<int64_t> counts = {0, 1, 3, 7, 8, 9, 255, 2049, 100003};

TEST_F(CudaAny, Fill) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32}) {
    for (const int64_t count : counts) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << count);
      Array y(dtype, {count});
      for (const double value : {0.0, -3.1415926}) {
        compare_bits({&y}, [&](Stream& stream, const On& on) { ops::fill(stream, on(y), value); });
      }
    }
  }
}

TEST_F(CudaAny, NormalValuesAreTheHostsBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const int64_t count : counts) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << count);
      Array y(dtype, {count});
      compare_bits({&y}, [&](Stream& stream, const On& on) {
        ops::fill_normal(stream, on(y), 0.02, {42, 7, uint64_t{1} << 33});
      });
    }
  }
}

TEST_F(CudaAny, CastAndAdd) {
  const std::vector<DType> all = {DType::f32, DType::bf16, DType::f64, DType::f16};
  for (const DType to : all) {
    for (const DType from : all) {
      for (const int64_t count : counts) {
        SCOPED_TRACE(testing::Message() << name_of(from) << " to " << name_of(to) << ", " << count);
        const Array x = parity::random(from, {count}, 1, 100.0);
        Array y(to, {count});
        compare_bits({&y}, [&](Stream& stream, const On& on) { ops::cast(stream, on(y), on(x)); });
        if (to == DType::f16 || from == DType::f16) continue;
        Array sum = parity::random(to, {count}, 2);
        compare_bits({&sum}, [&](Stream& stream, const On& on) { ops::add(stream, on(sum), on(x)); });
      }
    }
  }
}

TEST_P(CudaDense, CrossEntropy) {
  const DType dtype = GetParam();
  for (const Sizes s : {Sizes{0, 100}, Sizes{1, 2}, Sizes{3, 63}, Sizes{65, 257}, Sizes{300, 1000},
                        Sizes{5, 50000}, Sizes{2, 248320}}) {
    SCOPED_TRACE(say(s));
    Array logits = parity::random(dtype, {s.rows, s.width}, 1, 4.0);
    Array targets = parity::random_ids({s.rows}, static_cast<int32_t>(s.width), 2);
    if (s.rows > 2) targets.view().as<int32_t>()[1] = -100;
    Array loss(DType::f64, {1}, {0.25});
    Array dlogits(dtype, logits.shape());
    const auto gradients = compare({{&loss, 1e-13}, &dlogits}, [&](Stream& stream, const On& on) {
      ops::cross_entropy(stream, on(loss), on(dlogits), on(logits), on(targets));
    });
    Array evaluated(DType::f64, {1}, {0.25});
    const auto losses = compare({{&evaluated, 1e-13}}, [&](Stream& stream, const On& on) {
      ops::cross_entropy(stream, on(evaluated), Tensor{}, on(logits), on(targets));
    });
    for (size_t n = 0; n < losses.size(); ++n)
      EXPECT_TRUE(losses[n].outputs[0] == gradients[n].outputs[0]) << losses[n].kernel->name;
    Array again(DType::f64, {1}, {0.25});
    const auto in_place = compare({{&again, 1e-13}, &logits}, [&](Stream& stream, const On& on) {
      ops::cross_entropy(stream, on(again), on(logits), on(logits), on(targets));
    });
    for (size_t n = 0; n < in_place.size(); ++n)
      EXPECT_TRUE(in_place[n].outputs[1] == gradients[n].outputs[1]) << in_place[n].kernel->name;
  }
}

TEST_P(CudaDense, CrossEntropyOfExtremes) {
  const DType dtype = GetParam();
  const Array logits(dtype, {3, 3}, {1e4, 0, -1e4, -1e4, -1e4, -1e4, 1, NAN, 2});
  for (const int64_t rows : {2, 3}) {  // with the NaN row the loss is NaN on both sides
    const Array targets(DType::i32, {rows},
                        rows == 2 ? std::vector<double>{1, 2} : std::vector<double>{1, 2, 0});
    Array loss(DType::f64, {1}, {0});
    Array dlogits(dtype, {3, 3});
    compare({{&loss, 1e-13}, &dlogits}, [&](Stream& stream, const On& on) {
      ops::cross_entropy(stream, on(loss), on(dlogits).slice(0, rows), on(logits).slice(0, rows),
                         on(targets));
    });
  }
}

}  // namespace
}  // namespace deltatune
