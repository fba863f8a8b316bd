// Which kernels a case of tests/cuda runs on: all that its op has and that take its shapes. A new kernel of
// an existing op is therefore tested by every case of the op as soon as it is in ops/kernel_list.h; a test
// names no kernel.
//
// The op is called once on a recording table, which notes the op, the dtypes and the head shapes of the call;
// these make the KernelRequest that the list's requirements are asked with. A case of several ops (none
// today) runs each kernel of each op, the others plain.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/kernel_list.h"

namespace deltatune::cuda_case {

/// What the recording table has seen.
inline KernelRequest& recorded() {
  static KernelRequest request;
  return request;
}

/// Any row of the table: notes its arguments.
struct Recorder {
  template <class... A>
  operator Fn<void(A...)>() const {  // NOLINT(google-explicit-constructor)
    return Fn<void(A...)>(+[](A... arguments) { (note(arguments), ...); });
  }

 private:
  static void note(const CTensor& x) {
    if (x.empty()) return;
    if (x.dtype == DType::bf16) recorded().storage = DType::bf16;
    // The columns of the first matrix stand for D, F and V alike.
    if (x.shape.rank == 2 && recorded().hidden == 0)
      recorded().hidden = recorded().intermediate = recorded().vocabulary = x.dim(1);
  }
  static void note(const AdamwTensors& x) { note(x.param_n); }
  static void note(const AttentionShape& shape) { recorded().attention = shape; }
  static void note(const GdnShape& shape) { recorded().gdn = shape; }
  static void note(const Segments& segments) {
    recorded().tokens = segments.positions_T.dim(0);
    recorded().max_documents = segments.max_documents();
  }
  template <class T>
  static void note(const T&) {}
  static void note(const Tensor& x) { note(CTensor(x)); }
};

inline const Kernels& recording_table() {
  static const Recorder any;
  static const Kernels table{"recording", any, any, any, any, any, any, any, any, any, any, any,
                             any,         any, any, any, any, any, any, any, any, any, any, any,
                             any,         any, any, any, any, any, any, any, any, any};
  return table;
}

/// A stream that computes nothing and records.
class RecordingStream final : public Stream {
 public:
  explicit RecordingStream(Device& device) : Stream(device, recording_table(), {}, "recording") {}
  void record(Event&) override {}
  void wait(const Event&) override {}
  void sync() override {}
  void upload(Tensor, const void*) override {}
  void download(void*, CTensor) override {}
};

/// A table for each kernel that can run the op on a device of these facts; `null` is a null device of the
/// cuda target. Cases that turn documents into nothing but zero-length ones still count.
inline std::vector<const KernelEntry*> fitting_kernels(Device& null, const DeviceFacts& facts,
                                                       const std::function<void(Stream&)>& op) {
  recorded() = {};
  recorded().device = facts;
  recorded().storage = DType::f32;
  RecordingStream stream(null);
  op(stream);
  std::vector<const KernelEntry*> out;
  for (size_t i = 0; i < static_cast<size_t>(Op::count); ++i) {
    if (stream.totals()[i].calls == 0) continue;
    for (const KernelEntry* kernel : kernels_of(Target::cuda, static_cast<Op>(i))) {
      if (refusal(*kernel, recorded()).empty()) out.push_back(kernel);
    }
  }
  return out;
}

/// The choice in which this kernel serves its op and plain ones serve the others.
inline KernelChoice choice_with(const KernelEntry& kernel) {
  KernelChoice choice{};
  choice[static_cast<size_t>(kernel.op)] = &kernel;
  return choice;
}

}  // namespace deltatune::cuda_case
