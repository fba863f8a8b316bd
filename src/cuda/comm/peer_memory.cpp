// Meetings about memory, and its mapping.
#include "cuda/comm/peer_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "base/error.h"
#include "cuda/check.h"

namespace deltatune::cuda {
namespace {

using AddressRange = decltype(&cuMemGetAddressRange);

AddressRange find_address_range() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  DELTATUNE_CUDA(
      cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || !function) {
    throw Error(ErrorKind::internal, "the driver has no cuMemGetAddressRange", "memory of other ranks",
                "update the driver to one of CUDA 12 or later");
  }
  return reinterpret_cast<AddressRange>(function);
}

// What a rank says about a tensor. Of one program on one machine: its layout is no matter.
struct Statement {
  char call[24];
  uint64_t bytes;
  uint64_t number;            // of the allocation
  uint64_t offset;            // in it
  uint64_t size;              // of it
  cudaIpcMemHandle_t handle;  // where the allocation is new

  bool same_as(const Statement& other) const {
    return std::memcmp(call, other.call, sizeof call) == 0 && bytes == other.bytes &&
           number == other.number && size == other.size;
  }
  std::string text() const {
    return std::string(call) + " of " + std::to_string(bytes) + " bytes in allocation " +
           std::to_string(number) + " (" + std::to_string(size) + " bytes)";
  }
};

Statement read_statement(const std::string& text) {
  Statement out{};
  if (text.size() == sizeof out) {
    std::memcpy(&out, text.data(), sizeof out);
    out.call[sizeof out.call - 1] = '\0';
  } else {
    std::strncpy(out.call, "another exchange", sizeof out.call - 1);
  }
  return out;
}

}  // namespace

DeviceRange allocation_of(const void* address) {
  static const AddressRange address_range = find_address_range();
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  if (address_range(&begin, &bytes, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS)
    throw Error(ErrorKind::internal, "an address of no allocation of this device", "memory of other ranks");
  return {reinterpret_cast<const std::byte*>(begin), bytes};
}

void PeerMemory::close() noexcept {
  for (const Base& base : bases_) {
    for (size_t r = 0; r < base.peers.size(); ++r) {
      if (r != static_cast<size_t>(rank_) && base.peers[r]) cudaIpcCloseMemHandle(base.peers[r]);
    }
  }
  bases_.clear();
  known_.clear();
  cudaGetLastError();
}

size_t PeerMemory::number_of(const std::byte* address) const {
  size_t i = 0;
  while (i < bases_.size() && !(address >= bases_[i].begin && address < bases_[i].begin + bases_[i].bytes))
    ++i;
  return i;
}

const PeerAddresses& PeerMemory::of(CTensor x, const char* call) {
  const std::tuple key{x.data, x.bytes(), std::string_view(call)};
  if (const auto at = known_.find(key); at != known_.end()) return at->second;
  const size_t number = number_of(x.data);
  const bool is_new = number == bases_.size();
  const DeviceRange range =
      is_new ? allocation_of(x.data) : DeviceRange{bases_[number].begin, bases_[number].bytes};
  Statement mine{};
  std::strncpy(mine.call, call, sizeof mine.call - 1);
  mine.bytes = x.bytes();
  mine.number = number;
  mine.offset = static_cast<uint64_t>(x.data - range.begin);
  mine.size = range.bytes;
  if (is_new) {
    DELTATUNE_CUDA(cudaIpcGetMemHandle(&mine.handle, const_cast<std::byte*>(range.begin)));
  }
  const std::vector<std::string> texts = exchange_({reinterpret_cast<const char*>(&mine), sizeof mine});
  for (size_t r = 0; r < texts.size(); ++r) {
    const Statement other = read_statement(texts[r]);
    if (other.same_as(mine)) continue;
    throw Error(ErrorKind::internal, "ranks disagree: " + mine.text() + " meets " + other.text(),
                "rank " + std::to_string(rank_) + " and rank " + std::to_string(r),
                "please report it with the command line");
  }
  if (is_new) {
    Base base{range.begin, range.bytes, {}};
    map(base, texts);
    bases_.push_back(std::move(base));
  }
  PeerAddresses out;
  for (size_t r = 0; r < texts.size(); ++r)
    out.push_back(bases_[number].peers[r] + read_statement(texts[r]).offset);
  return known_.emplace(key, std::move(out)).first->second;
}

void PeerMemory::map(Base& base, const std::vector<std::string>& texts) {
  for (size_t r = 0; r < texts.size(); ++r) {
    void* mapped = const_cast<std::byte*>(base.begin);
    if (r != static_cast<size_t>(rank_)) {
      const cudaError_t status =
          cudaIpcOpenMemHandle(&mapped, read_statement(texts[r]).handle, cudaIpcMemLazyEnablePeerAccess);
      if (status != cudaSuccess) {
        cudaGetLastError();
        throw Error(ErrorKind::resource,
                    std::string("cannot map the memory of rank ") + std::to_string(r) + ": " +
                        cudaGetErrorString(status),
                    "rank " + std::to_string(rank_),
                    "use comm_transport: nccl; in a container, ranks need one IPC namespace");
      }
    }
    base.peers.push_back(static_cast<std::byte*>(mapped));
  }
}

}  // namespace deltatune::cuda
