// Making blocks and copying them.
#include "train/random_fill.h"

#include <algorithm>

#include "base/rng.h"
#include "tensor/dtype.h"

namespace deltatune {
namespace {
constexpr size_t block_elements = 1048583;  // a prime
}

const std::vector<std::byte>& RandomFill::block(DType dtype, Kind kind, double low, double high) {
  std::vector<std::byte>& bytes = blocks_[{dtype, kind, low, high}];
  if (!bytes.empty()) return bytes;
  Rng rng(20250101, static_cast<uint64_t>(blocks_.size()));
  std::vector<double> values(block_elements);
  for (double& value : values) value = kind == Kind::normal ? high * rng.normal() : rng.uniform(low, high);
  bytes.resize(block_elements * size_of(dtype));
  if (dtype == DType::i32) {
    auto* const integers = reinterpret_cast<int32_t*>(bytes.data());
    std::transform(values.begin(), values.end(), integers, [](double x) { return static_cast<int32_t>(x); });
  } else {
    convert(bytes.data(), dtype, values.data(), DType::f64, static_cast<int64_t>(block_elements));
  }
  return bytes;
}

void RandomFill::write(Stream& stream, Tensor x, const std::vector<std::byte>& bytes) {
  const size_t total = x.bytes();
  const auto piece = [&](size_t begin, size_t size) {
    return Tensor{x.data + begin, DType::u8, {static_cast<int64_t>(size)}};
  };
  size_t done = std::min(bytes.size(), total);
  if (done > 0) stream.upload(piece(0, done), bytes.data());
  // The device doubles what is there: faster than the way from the host.
  while (done < total) {
    const size_t size = std::min(done, total - done);
    stream.copy(piece(done, size), piece(0, size));
    done += size;
  }
  stream.sync();
}

void RandomFill::normal(Stream& stream, Tensor x, double deviation) {
  write(stream, x, block(x.dtype, Kind::normal, 0, deviation));
}

void RandomFill::uniform(Stream& stream, Tensor x, double low, double high) {
  write(stream, x, block(x.dtype, Kind::uniform, low, high));
}

}  // namespace deltatune
