// Numbers travel as their bytes.
#include "comm/exchange.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

template <class T>
std::vector<T> all(Communicator& comm, T value) {
  std::vector<T> out;
  for (const std::string& bytes : comm.exchange({reinterpret_cast<const char*>(&value), sizeof value})) {
    DELTATUNE_ASSERT(bytes.size() == sizeof(T));
    out.emplace_back();
    std::memcpy(&out.back(), bytes.data(), sizeof(T));
  }
  return out;
}

}  // namespace

void sum_over_ranks(Communicator& comm, std::initializer_list<int64_t*> values) {
  if (comm.world_size() == 1) return;
  std::string mine;
  for (const int64_t* value : values) mine.append(reinterpret_cast<const char*>(value), sizeof *value);
  for (int64_t* value : values) *value = 0;
  for (const std::string& bytes : comm.exchange(mine)) {
    DELTATUNE_ASSERT(bytes.size() == mine.size());
    const char* from = bytes.data();
    for (int64_t* value : values) {
      int64_t theirs = 0;
      std::memcpy(&theirs, from, sizeof theirs);
      from += sizeof theirs;
      *value += theirs;
    }
  }
}

double sum_over_ranks(Communicator& comm, double value) {
  if (comm.world_size() == 1) return value;
  double sum = 0;
  for (const double theirs : all(comm, value)) sum += theirs;
  return sum;
}

int64_t min_over_ranks(Communicator& comm, int64_t value) {
  const std::vector<int64_t> values = all(comm, value);
  return *std::min_element(values.begin(), values.end());
}

int64_t max_over_ranks(Communicator& comm, int64_t value) {
  const std::vector<int64_t> values = all(comm, value);
  return *std::max_element(values.begin(), values.end());
}

std::vector<int> ranks_where(Communicator& comm, bool yes) {
  std::vector<int> out;
  const std::vector<std::string> all = comm.exchange(yes ? "y" : "n");
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == "y") out.push_back(static_cast<int>(rank));
  }
  return out;
}

void together(Communicator& comm, const char* what, const std::function<void()>& work) {
  if (comm.world_size() == 1) return work();
  std::optional<Error> own;
  try {
    work();
  } catch (const Error& error) {
    own = error;
  }
  const std::vector<std::string> said = comm.exchange(own ? own->what() : "");
  if (own) throw Error(*own);
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].empty()) continue;
    throw Error(ErrorKind::distributed, format("rank {} could not {}: {}", rank, what, said[rank]),
                comm.place(), "see the message of that rank");
  }
}

std::string from_rank_0(Communicator& comm, const std::string& text) {
  return comm.exchange(comm.rank() == 0 ? text : std::string()).front();
}

}  // namespace deltatune
