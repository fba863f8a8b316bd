// Ranks as threads: one function on each, and the errors that came out.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace deltatune {

using RankErrors = std::vector<std::optional<Error>>;

/// Runs body(communicator) on a thread per rank; a rank's communicator ends with its body.
inline RankErrors on_ranks(int world_size, const std::function<void(Communicator&)>& body,
                           std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  auto comms = make_threads_communicators(world_size, timeout);
  RankErrors errors(comms.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < comms.size(); ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = std::move(comms[r]);
      try {
        body(*comm);
      } catch (const Error& error) {
        errors[r] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// The same, where no rank may fail.
inline void run_ranks(int world_size, const std::function<void(Communicator&)>& body) {
  const RankErrors errors = on_ranks(world_size, body);
  for (const std::optional<Error>& error : errors) {
    if (error && error->kind() != ErrorKind::distributed) throw Error(*error);
  }
  for (const std::optional<Error>& error : errors) {
    if (error) throw Error(*error);
  }
}

}  // namespace deltatune
