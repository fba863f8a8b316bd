// A plug-in built without CUPTI's headers: no records, and the reason.
#include "cuda/activity.h"

namespace deltatune::cuda {

const CuptiLibrary& cupti_library() {
  static const CuptiLibrary none{0, "", "this plug-in was built without CUPTI's headers"};
  return none;
}

ActivityTracer activity_tracer() {
  const auto refuse = [](std::string& why) {
    why = cupti_library().why;
    return false;
  };
  return {refuse, [] { return int64_t{0}; }, [] { return ActivityTrace(); }, refuse, [](uint64_t) {}, [] {}};
}

}  // namespace deltatune::cuda
