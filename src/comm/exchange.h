// Small agreements between ranks, over Communicator::exchange. All ranks call them together.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace deltatune {

/// Each value becomes its sum over ranks.
void sum_over_ranks(Communicator&, std::initializer_list<int64_t*> values);
/// The sum in rank order: the same bits on every rank.
double sum_over_ranks(Communicator&, double value);
int64_t min_over_ranks(Communicator&, int64_t value);
int64_t max_over_ranks(Communicator&, int64_t value);
/// The ranks that say yes.
std::vector<int> ranks_where(Communicator&, bool yes);
/// Does `work`, which is not collective, on every rank; when it fails on one of them all stop: that rank with
/// its error, the others with Error{distributed} "rank 1 could not <what>: ...".
void together(Communicator&, const char* what, const std::function<void()>& work);
/// What rank 0 says, on every rank.
std::string from_rank_0(Communicator&, const std::string& text);

}  // namespace deltatune
