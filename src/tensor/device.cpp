// Allocation with bookkeeping.
#include "tensor/device.h"

#include "base/format.h"

namespace deltatune {

Buffer::~Buffer() {
  if (device_) device_->release(data_, size_);
}

Buffer Device::allocate(size_t bytes, std::string name, std::string owner, Lifetime lifetime) {
  // Whole alignment units, so that the plan counts what an arena of this size can hand out.
  const size_t rounded = (bytes + 255) / 256 * 256;
  std::byte* data = allocate_raw(rounded);
  if (!data) {
    throw Error(ErrorKind::resource,
                format("out of memory on {}: {} for {} after {}", this->name(), format_bytes(rounded), name,
                       format_bytes(allocated_bytes_)),
                format("region \"{}\" of {}", name, owner),
                "lower max_tokens, recompute more, or see where the bytes go with `deltatune plan`");
  }
  plan_.add({std::move(name), std::move(owner), lifetime, rounded});
  ++allocation_count_;
  allocated_bytes_ += rounded;
  return Buffer(this, data, rounded);
}

void Device::release(std::byte* data, size_t bytes) noexcept {
  free_raw(data, bytes);
  allocated_bytes_ -= bytes;
}

}  // namespace deltatune
