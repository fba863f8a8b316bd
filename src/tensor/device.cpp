// Allocation with bookkeeping.
#include "tensor/device.h"

#include <chrono>

#include "base/format.h"

namespace deltatune {

Buffer::~Buffer() {
  if (device_) device_->release(data_, size_, staging_);
}

void Stream::mark(Moment& moment) {
  sync();
  moment.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Stream::seconds_between(const Moment& begin, const Moment& end) {
  return end.seconds - begin.seconds;
}

Buffer Device::allocate(size_t bytes, std::string name, std::string owner, Lifetime lifetime) {
  // Whole alignment units, so that the plan counts what an arena of this size can hand out.
  const size_t rounded = (bytes + 255) / 256 * 256;
  return add(allocate_raw(rounded), {std::move(name), std::move(owner), lifetime, rounded}, false);
}

Buffer Device::allocate_staging(size_t bytes, std::string name, std::string owner) {
  const size_t rounded = (bytes + 255) / 256 * 256;
  const bool host = target() != Target::cpu;
  return add(allocate_staging_raw(rounded), {std::move(name), std::move(owner), Lifetime::run, rounded, host},
             true);
}

Buffer Device::add(std::byte* data, Region region, bool staging) {
  const size_t bytes = region.bytes;
  if (!data) {
    if (region.host) {
      throw Error(ErrorKind::resource,
                  format("this machine has no {} of pinned memory for {}", format_bytes(bytes), region.name),
                  format("region \"{}\" of {}", region.name, region.owner),
                  "free memory, raise the limit of locked memory (ulimit -l), or keep less on the host");
    }
    throw Error(ErrorKind::resource,
                format("out of memory on {}: {} for {} after {}", this->name(), format_bytes(bytes),
                       region.name, format_bytes(allocated_bytes_)),
                format("region \"{}\" of {}", region.name, region.owner),
                "lower max_tokens, recompute more, or see where the bytes go with `deltatune plan`");
  }
  if (!region.host) allocated_bytes_ += bytes;
  plan_.add(std::move(region));
  ++allocation_count_;
  return Buffer(this, data, bytes, staging);
}

void Device::release(std::byte* data, size_t bytes, bool staging) noexcept {
  staging ? free_staging_raw(data, bytes) : free_raw(data, bytes);
  if (!staging || target() == Target::cpu) allocated_bytes_ -= bytes;
}

}  // namespace deltatune
