// Sums and names of the memory plan.
#include "tensor/memory_plan.h"

namespace deltatune {

const char* name_of(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::run:
      return "run";
    case Lifetime::step:
      return "step";
    case Lifetime::block:
      return "block";
    case Lifetime::op:
      return "op";
  }
  return "?";
}

size_t MemoryPlan::total() const {
  size_t sum = 0;
  for (const Region& region : regions_) sum += region.host ? 0 : region.bytes;
  return sum;
}

}  // namespace deltatune
