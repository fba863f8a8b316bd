// Sizes at which 32-bit indices and grid limits end: more than 2^31 logits, more than 65,535 (document, head)
// pairs.
#include "cuda/mixer_cases.h"

namespace deltatune {
namespace {

using cuda_case::AttentionCase;
using cuda_case::compare;
using cuda_case::DeltaCase;
using cuda_case::On;
using cuda_case::ones;
using cuda_case::rounds_inside;
using parity::Array;

class CudaLarge : public cuda_case::CudaFixture<> {};

/// Logits of zeros but for the last row, whose target is the last class: 8,648 rows of 248,320 classes are
/// the last that 2^31 elements hold.
TEST_F(CudaLarge, CrossEntropyOfMoreThanTwoToThe31Logits) {
  constexpr int64_t classes = 248320;
  std::string why;
  Device& device = *cuda_case::cuda_device(why);
  const Array last = parity::random(DType::bf16, {1, classes}, 1, 4.0);
  const Array last_target(DType::i32, {1}, {static_cast<double>(classes - 1)});
  Array last_loss(DType::f64, {1}, {0});
  Array last_gradient(DType::bf16, last.shape());
  parity::Runner run;
  run([&](Stream& s) {
    ops::cross_entropy(s, last_loss.view(), last_gradient.view(), const_cast<Array&>(last).view(),
                       const_cast<Array&>(last_target).view());
  });
  for (const int64_t rows : {8648, 8649, 16384}) {
    SCOPED_TRACE(rows);
    const auto stream = device.make_stream("test");
    const Buffer memory =
        device.allocate(static_cast<size_t>(rows * classes) * 2 + 1024, "logits", "test", Lifetime::op);
    const Buffer small = device.allocate(static_cast<size_t>(rows) * 4 + 8, "targets", "test", Lifetime::op);
    const Tensor logits{memory.data(), DType::bf16, {rows, classes}};
    const Tensor behind{memory.data() + logits.bytes(), DType::u8, {1024}};
    const Tensor loss{small.data(), DType::f64, {1}};
    const Tensor targets{small.data() + 8, DType::i32, {rows}};
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) ids[static_cast<size_t>(r)] = static_cast<int32_t>(r * 7919 % classes);
    ids.back() = static_cast<int32_t>(classes - 1);
    const auto null = make_null_device(device.facts());
    const auto planned = null->make_stream("plan");
    ops::cross_entropy(*planned, loss, logits, logits, targets);
    const Buffer scratch = device.allocate(planned->scratch_wish() + 1, "scratch", "test", Lifetime::op);
    stream->set_scratch(scratch.span().first(planned->scratch_wish()));
    ops::fill(*stream, logits, 0);
    ops::fill(*stream, behind, 0xa5);
    ops::fill(*stream, loss, 0);
    stream->upload(logits.slice(rows - 1, 1), last.memory().data());
    stream->upload(targets, ids.data());
    ops::cross_entropy(*stream, loss, logits, logits, targets);
    double sum = 0;
    Array gradient(DType::bf16, last.shape());
    std::vector<uint8_t> sentinel(1024);
    std::vector<uint16_t> before(static_cast<size_t>(classes));
    stream->download(&sum, loss);
    stream->download(gradient.view().data, logits.slice(rows - 1, 1));
    stream->download(before.data(), logits.slice(rows - 2, 1));
    stream->download(sentinel.data(), behind);
    stream->sync();
    const double zeros = static_cast<double>(rows - 1) * std::log(static_cast<double>(classes));
    // Each row's loss is rounded to f32 once.
    EXPECT_NEAR(sum, zeros + last_loss.values()[0], 1e-7 * sum);
    EXPECT_LE(parity::nmse(gradient.values(), last_gradient.values()), parity::bound(DType::bf16));
    // 1/248320 everywhere but at the target, where it is that minus 1.
    const auto target = static_cast<size_t>(ids[static_cast<size_t>(rows - 2)]);
    const uint16_t other = narrow<bf16>(1.0f / static_cast<float>(classes)).bits;
    int64_t wrong = 0;
    for (size_t c = 0; c < before.size(); ++c) wrong += c != target && before[c] != other;
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(before[target], narrow<bf16>(1.0f / static_cast<float>(classes) - 1).bits);
    EXPECT_TRUE(std::all_of(sentinel.begin(), sentinel.end(), [](uint8_t b) { return b == 0xa5; }));
  }
}

/// A tail of padding seen as thousands of one-token documents: documents times heads is above a grid's
/// 65,535.
TEST_F(CudaLarge, GatedDeltaOfThousandsOfDocuments) {
  for (const DType dtype : cuda_case::cuda_dtypes) {
    SCOPED_TRACE(name_of(dtype));
    DeltaCase c(dtype, {16, 48, 128, 128, 4}, {1});
    c.row = parity::Row(ones(1400));
    const int64_t T = c.row.tokens;
    c.q = cuda_case::unit_rows(dtype, {T, 16, 128}, 1);
    c.k = cuda_case::unit_rows(dtype, {T, 16, 128}, 2);
    c.v = parity::random(dtype, {T, 48, 128}, 3);
    c.g = cuda_case::uniform(DType::f32, {T, 48}, 4, -0.2, 0);
    c.beta = cuda_case::uniform(DType::f32, {T, 48}, 5, 0, 1);
    c.o = Array(dtype, {T, 48, 128});
    compare({rounds_inside(&c.o)}, [&](Stream& stream, const On& on) {
      ops::gated_delta_forward(stream, on(c.o), Tensor{}, on(c.q), on(c.k), on(c.v), on(c.g), on(c.beta),
                               on.segments(c.row), c.shape);
    });
  }
}

TEST_F(CudaLarge, AttentionOfThousandsOfDocuments) {
  for (const DType dtype : cuda_case::cuda_dtypes) {
    SCOPED_TRACE(name_of(dtype));
    AttentionCase c(dtype, {24, 4, 256, 64}, ones(2800));
    c.forward();
    c.backward();
  }
}

}  // namespace
}  // namespace deltatune
