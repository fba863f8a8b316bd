// The CUDA device and its streams.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>

#include "cuda/cudnn/attention.h"
#include "cuda/matmul.h"
#include "ops/kernels.h"
#include "tensor/device.h"

namespace deltatune::cuda {

/// What kernels need of the device besides memory: the stream, library handles, properties.
class CudaDevice;

/// A cudaStream_t with the cuda table. native() is the stream.
class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, const Kernels& kernels, const KernelChoice& choice, std::string name);
  ~CudaStream() override;
  void* native() const override { return stream_; }
  void record(Event& event) override;
  void wait(const Event& event) override;
  void sync() override;
  void mark(Moment& moment) override;
  double seconds_between(const Moment& begin, const Moment& end) override;
  void upload(Tensor to, const void* host) override;
  void download(void* host, CTensor from) override;
  void host_wait(const Event& event) override;
  bool can_capture() const override { return true; }
  void begin_capture() override;
  Graph end_capture() override;
  void abandon_capture() noexcept override;
  void launch(const Graph& graph) override;
  void copy(Tensor to, CTensor from) override;

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  /// Opens device `index`; Error{resource} when it is older than sm_80 or cannot be used.
  explicit CudaDevice(int index);
  ~CudaDevice() override;
  const char* name() const override { return name_.c_str(); }
  Target target() const override { return Target::cuda; }
  DeviceFacts facts() const override;
  void prepare(Stream& stream, MatmulTuning& tuning) override;
  void use_in_this_thread() override;
  size_t available_bytes() const override;
  const cudaDeviceProp& properties() const { return properties_; }
  MatmulPlans& matmul_plans() { return matmul_plans_; }
  AttentionPlans& attention_plans() { return attention_plans_; }

 protected:
  std::unique_ptr<Stream> open_stream(std::string name, const KernelChoice& choice) override;
  std::byte* allocate_raw(size_t bytes) override;
  void free_raw(std::byte* data, size_t bytes) noexcept override;
  std::byte* allocate_staging_raw(size_t bytes) override;
  void free_staging_raw(std::byte* data, size_t bytes) noexcept override;

 private:
  int index_;
  std::string name_;
  cudaDeviceProp properties_{};
  MatmulPlans matmul_plans_;
  AttentionPlans attention_plans_;
  std::map<KernelChoice, Kernels> tables_;  // streams point into it; none is ever removed
};

/// The stream of an op as CUDA's type.
inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace deltatune::cuda
