// HostGroup: the host-side meeting of the ranks of a run, without MPI.
//
// For small things that all ranks have to know (memory handles, identifiers, agreements) and for noticing
// that a rank is gone. Processes meet over TCP in a star around rank 0 (comm/host_group_join.cpp); for tests,
// threads of one process meet over socket pairs and run the same code. All ranks make the same calls in the
// same order. Every call has a deadline; a rank whose process has ended is noticed at once, because its
// connection closes. After an error every later call throws it again.
// Deliberately not here: anything in stream order (comm/communicator.h), trees (a star serves some hundred
// ranks), encryption. Whoever can reach the port before the ranks do can keep them from starting, no more.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/launch.h"

namespace deltatune {

class HostGroup {
 public:
  virtual ~HostGroup() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual int local_rank() const = 0;        ///< on this machine
  virtual int local_world_size() const = 0;  ///< ranks on this machine

  /// What every rank gives, in rank order, on every rank; up to 16 GiB each. `place` ("rank 1, step 12,
  /// backward") goes into messages; empty: "rank 1". Throws Error{distributed} that names the ranks that did
  /// not come, have left or are gone.
  virtual std::vector<std::string> exchange(std::string_view mine, const std::string& place = {}) = 0;
  /// The same, but only rank 0 gets it; the others get nothing and do not wait for each other.
  virtual std::vector<std::string> collect(std::string_view mine, const std::string& place = {}) = 0;
  /// Returns at once; throws as the others do when a rank is known to be gone (not: to have left). For hosts
  /// that wait for something else meanwhile.
  virtual void check(const std::string& place = {}) = 0;
  /// The orderly end, called by all ranks together; waits for the others a few seconds at most and throws
  /// nothing. A group that is destroyed without it counts as gone.
  virtual void leave() noexcept = 0;
};

struct HostGroupOptions {
  std::chrono::milliseconds timeout{std::chrono::seconds(1800)};  ///< of joining and of every call
  std::string version;                                            ///< of the program: the same on all ranks
  std::string agreement;  ///< lines that must be the same on all ranks, at most 32 KiB
};

/// The group of this process: rank 0 listens at launch.master_addr:master_port, the others connect, for as
/// long as it takes up to the time-out. Another WORLD_SIZE, version or agreement, and two processes with one
/// rank end in one Error{distributed} on all ranks; strangers on the port are dropped. Throws Error{usage}
/// where no address is known.
std::unique_ptr<HostGroup> join_host_group(const Launch& launch, const HostGroupOptions& options);

/// A port of 127.0.0.1 that nobody has now. Throws Error{resource}.
int free_local_port();

/// A group of `world_size` threads of this process (tests), one entry a rank; local ranks are ranks.
std::vector<std::unique_ptr<HostGroup>> make_threads_host_groups(int world_size,
                                                                 std::chrono::milliseconds timeout);

}  // namespace deltatune
