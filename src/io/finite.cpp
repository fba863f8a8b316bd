// A value is not finite when all its exponent bits are set; it is NaN when its mantissa is not zero as well.
#include "io/finite.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/format.h"
#include "io/checkpoint_reader.h"

namespace deltatune {
namespace {

template <class Bits>
NonFinite count(std::span<const std::byte> bytes, Bits exponent_mask) {
  NonFinite out;
  const Bits magnitude_mask = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  const size_t n = bytes.size() / sizeof(Bits);
  for (size_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    if ((bits & exponent_mask) != exponent_mask) continue;
    if (out.first < 0) out.first = static_cast<int64_t>(i);
    ++((bits & magnitude_mask) == exponent_mask ? out.infinite : out.nan);
  }
  return out;
}

}  // namespace

NonFinite count_nonfinite(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::f32:
      return count<uint32_t>(bytes, 0x7f800000u);
    case DType::bf16:
      return count<uint16_t>(bytes, 0x7f80u);
    case DType::f16:
      return count<uint16_t>(bytes, 0x7c00u);
    case DType::f64:
      return count<uint64_t>(bytes, 0x7ff0000000000000u);
    default:
      return {};
  }
}

void check_finite(const HfCheckpoint& checkpoint, std::span<const std::string> names) {
  constexpr int listed = 5;
  int bad = 0;
  std::string text;
  for (const std::string& name : names) {
    const TensorInfo* info = checkpoint.find(name);
    if (!info) continue;
    const NonFinite found = count_nonfinite(info->dtype, checkpoint.bytes(name));
    checkpoint.drop(name);
    if (!found.any()) continue;
    if (++bad > listed) continue;
    text += format("{}{} ({} NaN, {} infinite, first at element {})", bad > 1 ? ", " : "", shown(name),
                   found.nan, found.infinite, found.first);
  }
  if (bad == 0) return;
  if (bad > listed) text += format(" and {} more", bad - listed);
  throw Error(
      ErrorKind::model, format("the checkpoint has values that are not finite in {} tensors: {}", bad, text),
      checkpoint.folder().string(), "use a checkpoint without them: training would spread them everywhere");
}

}  // namespace deltatune
