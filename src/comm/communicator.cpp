// What all communicators say in the same words.
#include "comm/communicator.h"

#include "base/format.h"

namespace deltatune {

std::string Communicator::place() const {
  return format("rank {}, step {}, {}", rank(), step_, phase_);
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) out += i + 1 == ranks.size() ? " and " : ", ";
    out += format("{}", ranks[i]);
  }
  return out;
}

Error peers_missing(const std::vector<int>& ranks, const char* call, std::chrono::milliseconds waited,
                    const std::string& place) {
  return Error(ErrorKind::distributed,
               format("{} did not take part in {} within {:.4g} s", name_ranks(ranks), call,
                      static_cast<double>(waited.count()) * 1e-3),
               place,
               "see what stopped it; if it is only slow, raise ddp_timeout. The last checkpoint is kept");
}

}  // namespace deltatune
