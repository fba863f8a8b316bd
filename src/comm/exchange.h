// Small agreements between ranks, over Communicator::exchange. All ranks call them together.
#pragma once

#include <cstdint>
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
/// What rank 0 says, on every rank.
std::string from_rank_0(Communicator&, const std::string& text);

}  // namespace deltatune
