// PeerMemory: where the other ranks of this machine have a tensor.
//
// Processes map each other's device memory by CUDA IPC handles of whole allocations. Ranks make the same
// calls on allocations of the same sizes, so a tensor is known by the number of its allocation, in the order
// in which allocations were first seen, and by where each rank has it in there. The first call with a tensor
// is a meeting of all ranks: they compare what they mean, and hand each other the handles of allocations that
// are new. Later calls are a look-up, on the host, without a word to others. Memory that was seen has to live
// as long as this object: an address that is freed and allocated again would be taken for the old one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tensor/tensor.h"

namespace deltatune::cuda {

/// The same bytes of every rank, in rank order; valid on this device.
using PeerAddresses = std::vector<std::byte*>;

class PeerMemory {
 public:
  /// What every rank gives, in rank order: HostGroup::exchange.
  using Exchange = std::function<std::vector<std::string>(std::string_view mine)>;

  PeerMemory(int rank, Exchange exchange) : rank_(rank), exchange_(std::move(exchange)) {}
  ~PeerMemory() { close(); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// `call` is the collective that asks, part of what ranks compare. Throws Error{internal} where ranks
  /// disagree about call, bytes or layout, Error{resource} where an allocation cannot be mapped.
  const PeerAddresses& of(CTensor x, const char* call);
  /// Unmaps the others' memory; they should not free it before.
  void close() noexcept;

 private:
  struct Base {
    const std::byte* begin;
    size_t bytes;
    PeerAddresses peers;
  };
  size_t number_of(const std::byte* address) const;
  void map(Base& base, const std::vector<std::string>& texts);

  int rank_;
  Exchange exchange_;
  std::vector<Base> bases_;
  std::map<std::tuple<const std::byte*, size_t, std::string_view>, PeerAddresses> known_;
};

/// The allocation that an address of this device belongs to.
struct DeviceRange {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
};
DeviceRange allocation_of(const void* address);

}  // namespace deltatune::cuda
