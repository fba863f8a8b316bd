// Lanes: a few threads that move large blocks between files and a device, each with its own memory and
// stream.
//
// On a GPU a lane's memory is pinned and taken once, so that the plan counts it; where host and device are
// one, it is taken for the time of a run(). While one lane reads its file, others copy: the transfer is as
// fast as the slower of the two. Not for compute: streams of lanes have the device's plain kernels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/device.h"

namespace deltatune {

class StagingLanes {
 public:
  /// Bytes of one transfer: long enough for a disk to be at its sequential rate.
  static constexpr size_t block = size_t{16} << 20;
  /// Memory addresses and file offsets of direct I/O are multiples of this.
  static constexpr size_t page = 4096;

  struct Lane {
    std::byte* first;   ///< block + page bytes, at a multiple of page
    std::byte* second;  ///< the same again
    Stream* stream;
  };

  explicit StagingLanes(Device& device);

  /// Calls work(i, lane) for i = 0 .. count - 1, in rising order of their starts, from as many threads as
  /// there are lanes. Returns when all calls have; then rethrows the first exception, behind which no call is
  /// started. `stop`, when it becomes true, has the same effect as an exception, without one.
  /// One run at a time.
  void run(int64_t count, const std::function<void(int64_t, Lane&)>& work,
           const std::atomic<bool>* stop = nullptr) const;

 private:
  static constexpr size_t stride = block + page;
  Device& device_;
  std::vector<std::unique_ptr<Stream>> streams_;
  Buffer memory_;  ///< empty where lanes take theirs from the host as they need it
};

}  // namespace deltatune
