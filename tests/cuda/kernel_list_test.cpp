// The plug-in against the kernel list: a function for each name, a name for each function.
#include <algorithm>

#include "cuda/cuda_case.h"

namespace deltatune {
namespace {

const CudaPlugin* plugin(std::string& why) {
  const CudaPlugin* found = cuda_plugin(why);
  // A plug-in that is there and does not load is a failure, not a skip.
  if (!found) {
    EXPECT_EQ(why.rfind("there is no", 0), 0U) << why;
  }
  return found;
}

TEST(CudaPlugin, HasTheKernelsOfTheList) {
  std::string why;
  const CudaPlugin* found = plugin(why);
  if (!found) GTEST_SKIP() << why;
  std::vector<std::string> functions = found->kernel_names();
  std::vector<std::string> names;
  for (const KernelEntry& kernel : kernel_list()) {
    if (kernel.target == Target::cuda) names.emplace_back(kernel.name);
  }
  std::sort(functions.begin(), functions.end());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(functions, names);
}

}  // namespace
}  // namespace deltatune
