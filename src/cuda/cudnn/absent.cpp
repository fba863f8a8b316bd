// A plug-in built without the headers of cuDNN or of cudnn-frontend: no cuDNN, and the reason.
#include "cuda/cudnn/attention.h"
#include "cuda/cudnn/library.h"

namespace deltatune::cuda {

const CudnnLibrary& cudnn_library() {
  static const CudnnLibrary none{0, "", "this plug-in was built without cuDNN's headers and cudnn-frontend"};
  return none;
}

struct AttentionPlans::Impl {};
AttentionPlans::AttentionPlans() = default;
AttentionPlans::~AttentionPlans() = default;
std::string AttentionPlans::refused() const {
  return cudnn_library().why;
}
bool AttentionPlans::forward(Stream&, Tensor, Tensor, CTensor, CTensor, CTensor, const Segments&,
                             AttentionShape, AttentionBucket) {
  return false;
}

}  // namespace deltatune::cuda
