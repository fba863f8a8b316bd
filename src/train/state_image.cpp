// Copies of flat buffers, found by their device address.
#include "train/state_image.h"

#include <iterator>

#include "base/error.h"

namespace deltatune {
namespace {

constexpr size_t alignment = 256;

size_t rounded(size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

bool is_value(const StateTensor& tensor) {
  return tensor.name.ends_with(".weights");
}

}  // namespace

size_t image_bytes(const ParamStore& store, bool only_values) {
  size_t out = 0;
  for (const StateTensor& tensor : store.state()) {
    if (!only_values || is_value(tensor)) out += rounded(tensor.data.bytes());
  }
  return out;
}

StateImage::StateImage(Engine& engine, bool only_values, bool copies)
    : engine_(engine), copies_(copies), bytes_(image_bytes(engine.store(), only_values)) {
  for (StateTensor& tensor : engine.store().state()) {
    if (!only_values || is_value(tensor)) tensors_.push_back(std::move(tensor));
  }
  Device& device = engine.device();
  if (copies && device.target() != Target::cpu)
    pinned_ = device.allocate_staging(bytes_, "copy of the state while it is saved", "io");
}

bool StateImage::can_copy() const {
  if (!copies_) return false;
  return pinned_.size() > 0 || bytes_ <= engine_.device().available_bytes() / 4;
}

void StateImage::capture(bool copy) {
  Stream& stream = engine_.stream();
  copied_.clear();
  if (copy) {
    if (pinned_.size() == 0) plain_.resize(bytes_);
    std::byte* to = pinned_.size() > 0 ? pinned_.data() : plain_.data();
    for (const StateTensor& tensor : tensors_) {
      stream.download(to, tensor.data);
      copied_.emplace(tensor.data.data, std::pair(to, tensor.data.bytes()));
      to += rounded(tensor.data.bytes());
    }
  }
  stream.sync();
}

void StateImage::drop() {
  copied_.clear();
  plain_ = {};
}

const std::byte* StateImage::at(const std::byte* data, size_t count, std::byte* scratch,
                                Stream& stream) const {
  if (!copied_.empty()) {
    auto found = copied_.upper_bound(data);
    DELTATUNE_ASSERT(found != copied_.begin());
    --found;
    const auto skipped = static_cast<size_t>(data - found->first);
    DELTATUNE_ASSERT(skipped + count <= found->second.second);
    return found->second.first + skipped;
  }
  if (engine_.device().target() == Target::cpu) return data;
  stream.download(scratch, {data, DType::u8, {static_cast<int64_t>(count)}});
  stream.sync();
  return scratch;
}

}  // namespace deltatune
