// Opening cuDNN and passing calls on to it.
#include "cuda/cudnn/library.h"

#include <dlfcn.h>

#pragma GCC visibility push(hidden)
#include <cudnn.h>
#pragma GCC visibility pop

#include "base/error.h"

namespace deltatune::cuda {
namespace {

constexpr const char* soname = "libcudnn.so.9";

struct Opened {
  void* handle = nullptr;
  CudnnLibrary library;

  Opened() {
    handle = ::dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      library.why = ::dlerror();
      return;
    }
    void* const version = ::dlsym(handle, "cudnnGetVersion");
    if (!version) {
      library.why = std::string(soname) + " has no cudnnGetVersion";
      return;
    }
    library.version = static_cast<int>(reinterpret_cast<size_t (*)()>(version)());
    Dl_info info{};
    if (::dladdr(version, &info) && info.dli_fname) library.path = info.dli_fname;
  }
};

const Opened& opened() {
  static const Opened library;
  return library;
}

/// The function `name` of the library, with the type of its declaration.
template <class F>
F* function(const char* name) {
  void* const found = opened().handle ? ::dlsym(opened().handle, name) : nullptr;
  if (!found) {
    throw Error(ErrorKind::internal, std::string("cuDNN has no ") + name, soname,
                "install cuDNN 9, or see `deltatune doctor`");
  }
  return reinterpret_cast<F*>(found);
}

}  // namespace

const CudnnLibrary& cudnn_library() {
  return opened().library;
}

}  // namespace deltatune::cuda

extern "C" {

size_t cudnnGetVersion() {
  static auto* const f = deltatune::cuda::function<decltype(cudnnGetVersion)>("cudnnGetVersion");
  return f();
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  static auto* const f = deltatune::cuda::function<decltype(cudnnGetErrorString)>("cudnnGetErrorString");
  return f(status);
}
void cudnnGetLastErrorString(char* message, size_t size) {
  static auto* const f =
      deltatune::cuda::function<decltype(cudnnGetLastErrorString)>("cudnnGetLastErrorString");
  f(message, size);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  static auto* const f = deltatune::cuda::function<decltype(cudnnCreate)>("cudnnCreate");
  return f(handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  static auto* const f = deltatune::cuda::function<decltype(cudnnDestroy)>("cudnnDestroy");
  return f(handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  static auto* const f = deltatune::cuda::function<decltype(cudnnSetStream)>("cudnnSetStream");
  return f(handle, stream);
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  static auto* const f = deltatune::cuda::function<decltype(cudnnGetStream)>("cudnnGetStream");
  return f(handle, stream);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  static auto* const f =
      deltatune::cuda::function<decltype(cudnnBackendCreateDescriptor)>("cudnnBackendCreateDescriptor");
  return f(type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  static auto* const f =
      deltatune::cuda::function<decltype(cudnnBackendDestroyDescriptor)>("cudnnBackendDestroyDescriptor");
  return f(descriptor);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  static auto* const f = deltatune::cuda::function<decltype(cudnnBackendFinalize)>("cudnnBackendFinalize");
  return f(descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  static auto* const f =
      deltatune::cuda::function<decltype(cudnnBackendSetAttribute)>("cudnnBackendSetAttribute");
  return f(descriptor, name, type, count, elements);
}
cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t wanted, int64_t* count, void* elements) {
  static auto* const f =
      deltatune::cuda::function<decltype(cudnnBackendGetAttribute)>("cudnnBackendGetAttribute");
  return f(descriptor, name, type, wanted, count, elements);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  static auto* const f = deltatune::cuda::function<decltype(cudnnBackendExecute)>("cudnnBackendExecute");
  return f(handle, plan, pack);
}

}  // extern "C"
