// Memory by plain cudaMalloc and pinned host memory, streams, events, copies, graphs.
#include "cuda/device.h"

#include <sys/mman.h>

#include "base/thread_pool.h"
#include "cuda/check.h"
#include "cuda/cudnn/library.h"
#include "cuda/kernel_functions.h"

namespace deltatune::cuda {
namespace {

// Moments of a large model are tens of GiB: cudaMallocHost would fault and pin them page by page on one
// thread. All threads fault them in, in large pages where the system has them, and CUDA pins what is there.
constexpr size_t large_staging = size_t{256} << 20;

void unmap_pinned(std::byte* data, size_t bytes) noexcept {
  cudaHostUnregister(data);
  munmap(data, bytes);
}

std::byte* map_pinned(size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  madvise(mapped, bytes, MADV_HUGEPAGE);  // a wish
  auto* data = static_cast<std::byte*>(mapped);
  constexpr int64_t page = 4096;
  parallel_for(static_cast<int64_t>(bytes) / page, int64_t{1} << 14, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) static_cast<volatile std::byte*>(data)[p * page] = std::byte{0};
  });
  if (cudaHostRegister(data, bytes, cudaHostRegisterDefault) == cudaSuccess) return data;
  cudaGetLastError();
  munmap(mapped, bytes);
  return nullptr;
}

}  // namespace

CudaStream::CudaStream(CudaDevice& device, const Kernels& kernels, const KernelChoice& choice,
                       std::string name)
    : Stream(device, kernels, choice, std::move(name)) {
  // Kernels of collectives are short, and ranks wait for them: they go before those of a matrix product.
  int lowest = 0;
  int highest = 0;
  DELTATUNE_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  const bool first = this->name() == "comm";
  DELTATUNE_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, first ? highest : lowest));
}

CudaStream::~CudaStream() {
  cudaStreamDestroy(stream_);
}

void CudaStream::record(Event& event) {
  if (!event.native) {
    cudaEvent_t made = nullptr;
    DELTATUNE_CUDA(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    event.native =
        std::shared_ptr<void>(made, [](void* e) { cudaEventDestroy(static_cast<cudaEvent_t>(e)); });
  }
  DELTATUNE_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(event.native.get()), stream_));
}

void CudaStream::wait(const Event& event) {
  if (event.native)
    DELTATUNE_CUDA(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event.native.get()), 0));
}

void CudaStream::sync() {
  DELTATUNE_CUDA(cudaStreamSynchronize(stream_));
}

void CudaStream::mark(Moment& moment) {
  if (!moment.native) {
    cudaEvent_t made = nullptr;
    DELTATUNE_CUDA(cudaEventCreate(&made));
    moment.native =
        std::shared_ptr<void>(made, [](void* e) { cudaEventDestroy(static_cast<cudaEvent_t>(e)); });
  }
  DELTATUNE_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(moment.native.get()), stream_));
}

double CudaStream::seconds_between(const Moment& begin, const Moment& end) {
  const auto last = static_cast<cudaEvent_t>(end.native.get());
  DELTATUNE_CUDA(cudaEventSynchronize(last));
  float milliseconds = 0;
  DELTATUNE_CUDA(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin.native.get()), last));
  return double{milliseconds} * 1e-3;
}

// The device's side of a copy may be staging memory, where offloaded moments rest: CUDA knows from the
// address.
void CudaStream::upload(Tensor to, const void* host) {
  DELTATUNE_CUDA(cudaMemcpyAsync(to.data, host, to.bytes(), cudaMemcpyDefault, stream_));
}

void CudaStream::download(void* host, CTensor from) {
  DELTATUNE_CUDA(cudaMemcpyAsync(host, from.data, from.bytes(), cudaMemcpyDefault, stream_));
}

void CudaStream::host_wait(const Event& event) {
  if (event.native) DELTATUNE_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(event.native.get())));
}

void CudaStream::begin_capture() {
  // Thread-local: calls of other threads that a capture does not allow (a cudaMalloc) are no concern of ours.
  DELTATUNE_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
}

Graph CudaStream::end_capture() {
  cudaGraph_t captured = nullptr;
  DELTATUNE_CUDA(cudaStreamEndCapture(stream_, &captured));
  const std::shared_ptr<void> owner(captured, [](void* g) { cudaGraphDestroy(static_cast<cudaGraph_t>(g)); });
  size_t nodes = 0;
  DELTATUNE_CUDA(cudaGraphGetNodes(captured, nullptr, &nodes));
  cudaGraphExec_t made = nullptr;
  DELTATUNE_CUDA(cudaGraphInstantiate(&made, captured, 0));
  Graph graph;
  graph.native =
      std::shared_ptr<void>(made, [](void* g) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(g)); });
  graph.nodes = static_cast<int64_t>(nodes);
  // The first launch would do it otherwise, in the middle of a step.
  DELTATUNE_CUDA(cudaGraphUpload(made, stream_));
  return graph;
}

void CudaStream::abandon_capture() noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
    cudaGraph_t captured = nullptr;
    if (cudaStreamEndCapture(stream_, &captured) == cudaSuccess && captured) cudaGraphDestroy(captured);
  }
  cudaGetLastError();
}

void CudaStream::launch(const Graph& graph) {
  DELTATUNE_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.native.get()), stream_));
}

void CudaStream::copy(Tensor to, CTensor from) {
  DELTATUNE_CUDA(cudaMemcpyAsync(to.data, from.data, from.bytes(), cudaMemcpyDeviceToDevice, stream_));
}

CudaDevice::CudaDevice(int index) : index_(index), name_("cuda:" + std::to_string(index)) {
  use_in_this_thread();
  DELTATUNE_CUDA(cudaGetDeviceProperties(&properties_, index));
  if (properties_.major < 8) {
    throw Error(ErrorKind::resource,
                std::string(properties_.name) + " has compute capability " +
                    std::to_string(properties_.major) + "." + std::to_string(properties_.minor) +
                    ", 8.0 or later is needed",
                name_, "use a newer GPU, or device: cpu");
  }
}

CudaDevice::~CudaDevice() = default;

std::unique_ptr<Stream> CudaDevice::open_stream(std::string name, const KernelChoice& choice) {
  auto at = tables_.find(choice);
  if (at == tables_.end()) at = tables_.emplace(choice, table_of(choice)).first;
  return std::make_unique<CudaStream>(*this, at->second, choice, std::move(name));
}

DeviceFacts CudaDevice::facts() const {
  return {Target::cuda, properties_.major * 10 + properties_.minor, cudnn_library().version};
}

void CudaDevice::prepare(Stream& stream, MatmulTuning& tuning) {
  matmul_plans_.prepare(stream, properties_.name, tuning);
}

void CudaDevice::use_in_this_thread() {
  DELTATUNE_CUDA(cudaSetDevice(index_));
}

size_t CudaDevice::available_bytes() const {
  size_t free = 0;
  size_t total = 0;
  DELTATUNE_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

std::byte* CudaDevice::allocate_raw(size_t bytes) {
  void* data = nullptr;
  // Zero bytes still get an address: null would mean "no memory".
  if (cudaMalloc(&data, bytes == 0 ? 256 : bytes) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return static_cast<std::byte*>(data);
}

void CudaDevice::free_raw(std::byte* data, size_t) noexcept {
  cudaFree(data);
}

std::byte* CudaDevice::allocate_staging_raw(size_t bytes) {
  if (bytes >= large_staging) return map_pinned(bytes);
  void* data = nullptr;
  if (cudaMallocHost(&data, bytes == 0 ? 256 : bytes) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return static_cast<std::byte*>(data);
}

void CudaDevice::free_staging_raw(std::byte* data, size_t bytes) noexcept {
  if (bytes >= large_staging) return unmap_pinned(data, bytes);
  cudaFreeHost(data);
}

}  // namespace deltatune::cuda
