// Counting and drawing uses.
#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"

namespace deltatune {
namespace {

// Philox streams of the drawn orders, apart from those of shuffles.
constexpr uint64_t stream_tag = uint64_t{0x6d69} << 48;

}  // namespace

int64_t MixturePart::uses() const {
  if (size() == 0) return 0;
  return std::max<int64_t>(1, std::llround(static_cast<double>(size()) * weight));
}

void check_mixture(std::span<const MixturePart> parts, int64_t count) {
  int64_t at = 0;
  int64_t uses = 0;
  for (const MixturePart& part : parts) {
    DELTATUNE_ASSERT(part.begin == at && part.end >= at && part.weight > 0 && part.weight <= 1000);
    at = part.end;
    uses += part.uses();
  }
  DELTATUNE_ASSERT(parts.empty() || at == count);
  if (uses > INT32_MAX) {
    throw Error(ErrorKind::usage, format("the weights make an epoch of {} conversations", uses),
                "dataset_weights", "divide all of them by one number, and raise num_train_epochs instead");
  }
}

std::vector<int32_t> mixed_documents(std::span<const MixturePart> parts, int64_t count, uint64_t seed,
                                     int64_t epoch) {
  std::vector<int32_t> out;
  if (parts.empty()) {
    out.resize(static_cast<size_t>(count));
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    const MixturePart& part = parts[p];
    const int64_t n = part.size();
    if (n == 0) continue;
    const int64_t extra = part.uses() % n;
    std::vector<int64_t> times(static_cast<size_t>(n), part.uses() / n);
    if (extra > 0) {
      std::vector<int32_t> drawn(static_cast<size_t>(n));
      std::iota(drawn.begin(), drawn.end(), 0);
      Rng rng(seed, stream_tag | p);
      for (size_t i = drawn.size(); i > 1; --i) std::swap(drawn[i - 1], drawn[rng.below(i)]);
      const int64_t first = (epoch % n) * extra % n;
      for (int64_t k = 0; k < extra; ++k)
        ++times[static_cast<size_t>(drawn[static_cast<size_t>((first + k) % n)])];
    }
    for (int64_t i = 0; i < n; ++i) {
      out.insert(out.end(), static_cast<size_t>(times[static_cast<size_t>(i)]),
                 static_cast<int32_t>(part.begin + i));
    }
  }
  return out;
}

}  // namespace deltatune
