// Drawing the held-out conversations.
#include "data/hold_out.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"

namespace deltatune {

namespace {

double held_of(double size, int64_t count) {
  return size < 1 ? std::ceil(size * static_cast<double>(count)) : std::floor(size);
}

}  // namespace

void check_hold_out(double size, int64_t count, bool at_most) {
  if (held_of(size, count) < static_cast<double>(count)) return;
  throw Error(ErrorKind::usage,
              format("val_size {} leaves none of {} to train on", size,
                     at_most ? "at most " + counted(count, "row") : counted(count, "conversation")),
              "val_size", "hold out fewer, or name an eval_dataset");
}

std::pair<TokenizedSet, TokenizedSet> hold_out(const TokenizedSet& set, double size, uint64_t seed) {
  const int64_t total = set.size();
  check_hold_out(size, total);
  const double wish = held_of(size, total);
  std::vector<int32_t> order(static_cast<size_t>(total));
  std::iota(order.begin(), order.end(), 0);
  // A stream of its own: the shuffles of the epochs use the same seed.
  constexpr uint64_t stream = 0x76616c5f73697a65;
  Rng rng(seed, stream);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  const auto cut = order.begin() + static_cast<std::ptrdiff_t>(wish);
  std::vector<int32_t> held(order.begin(), cut);
  std::vector<int32_t> rest(cut, order.end());
  std::sort(held.begin(), held.end());
  std::sort(rest.begin(), rest.end());
  return {set.subset(rest), set.subset(held)};
}

}  // namespace deltatune
